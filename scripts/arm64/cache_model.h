/* Caches of one core, one behind the other: an access looks into the next level where it misses, and leaves its line in
   all that it missed in. Least recently used lines go first; reads and writes are alike; nothing is prefetched. */
#include <stdint.h>
#include <string.h>

enum { LINE_BITS = 6, LEVELS = 3, MOST_SETS = 2048, MOST_WAYS = 16 };
/* Sets and ways: the 64 KiB, 4 ways, and 512 KiB, 8 ways, of a Cortex-A76, and 2 MiB, 16 ways, that its cores share. */
static const struct { unsigned sets, ways; } shape[LEVELS] = {{256, 4}, {1024, 8}, {2048, 16}};
/* Lines + 1 of each set, the one used last first; 0 is none. */
static uint64_t held[LEVELS][MOST_SETS][MOST_WAYS];
static uint64_t accesses, misses[LEVELS];

static int is_held(int level, uint64_t line) {
  uint64_t *set = held[level][line % shape[level].sets], wanted = line + 1;
  unsigned i = 0, last = shape[level].ways - 1;
  while (i < last && set[i] != wanted) i++;
  int found = set[i] == wanted;
  memmove(set + 1, set, i * sizeof *set);
  set[0] = wanted;
  return found;
}
static void touch(uint64_t address, unsigned bytes) {
  static uint64_t latest = -1; /* it is the first of its set */
  for (uint64_t line = address >> LINE_BITS; line <= (address + bytes - 1) >> LINE_BITS; line++) {
    accesses++;
    if (line == latest) continue;
    latest = line;
    for (int level = 0; level < LEVELS && !is_held(level, line); level++) misses[level]++;
  }
}
