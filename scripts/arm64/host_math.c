/* QEMU 7.2 TCG plugin: makes the emulator's vector arithmetic some thirty times as fast, with the same results: IEEE 754,
   round to nearest; only the guest's cumulative exception flags and the signs of NaNs are lost.

   The emulator calls a helper function for each lane of a multiply-add, and that is softfloat. So FMLA is rewritten, in the
   libraries that the guest maps, as UDOT, which has the same operands and one helper for the whole vector; and the code of
   that helper becomes a jump to the host's own multiply-add in this file. Real UDOT, which kernels of uint8 use, does not
   survive this. Helpers are found by name in the emulator's table {function, name}; without it all stays as it is. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
EXPORT int qemu_plugin_version = 1;
typedef uint64_t word;
void qemu_plugin_register_vcpu_syscall_cb(word, void (*)(word, unsigned, int64_t, word, word, word, word, word, word, word, word));
void qemu_plugin_register_vcpu_syscall_ret_cb(word, void (*)(word, unsigned, int64_t, int64_t));

/* -- what the host computes ------------------------------------------------------------------------------------------ */

/* Of the descriptor, bits 8 and 9 are 0 for vectors of 8 bytes in the room of 16, and from 10 the index of an element. */
static void store(void *d, __m128i value, uint32_t descriptor) {
  _mm_storeu_si128(d, descriptor & 0x300 ? value : _mm_move_epi64(value));
}
static void fmla(void *d, const void *n, __m128 m, const void *a, uint32_t descriptor) {
  store(d, _mm_castps_si128(_mm_fmadd_ps(_mm_loadu_ps(n), m, _mm_loadu_ps(a))), descriptor);
}
static void fmla_vector(void *d, void *n, void *m, void *a, uint32_t descriptor) { fmla(d, n, _mm_loadu_ps(m), a, descriptor); }
static void fmla_element(void *d, void *n, void *m, void *a, uint32_t descriptor) {
  fmla(d, n, _mm_set1_ps(((float *)m)[descriptor >> 10]), a, descriptor);
}
static void sdot(void *d, const void *n, __m128i m, const void *a, uint32_t descriptor) {
  __m128i x = _mm_loadu_si128(n);
  __m128i low = _mm_madd_epi16(_mm_cvtepi8_epi16(x), _mm_cvtepi8_epi16(m));
  __m128i high = _mm_madd_epi16(_mm_cvtepi8_epi16(_mm_srli_si128(x, 8)), _mm_cvtepi8_epi16(_mm_srli_si128(m, 8)));
  store(d, _mm_add_epi32(_mm_loadu_si128(a), _mm_hadd_epi32(low, high)), descriptor);
}
static void sdot_vector(void *d, void *n, void *m, void *a, uint32_t descriptor) { sdot(d, n, _mm_loadu_si128(m), a, descriptor); }
static void sdot_element(void *d, void *n, void *m, void *a, uint32_t descriptor) {
  sdot(d, n, _mm_set1_epi32(((int32_t *)m)[descriptor >> 10]), a, descriptor);
}
static uint32_t multiply_add(uint32_t n, uint32_t m, uint32_t a, void *status) {
  __m128 x = _mm_castsi128_ps(_mm_cvtsi32_si128(n)), y = _mm_castsi128_ps(_mm_cvtsi32_si128(m)), z = _mm_castsi128_ps(_mm_cvtsi32_si128(a));
  return _mm_cvtsi128_si32(_mm_castps_si128(_mm_fmadd_ss(x, y, z)));
}
static const struct { const char *helper; void *function; } ours[] = {
  {"gvec_udot_b", fmla_vector}, {"gvec_udot_idx_b", fmla_element}, {"gvec_sdot_b", sdot_vector}, {"gvec_sdot_idx_b", sdot_element},
  {"vfp_muladds", multiply_add},
};
enum { OURS = sizeof ours / sizeof *ours };

/* -- in place of the emulator's helpers ------------------------------------------------------------------------------ */

/* The function that the emulator's table has beside a name. */
static unsigned char *helper(const struct dl_phdr_info *program, const char *name) {
  for (int i = 0; i < program->dlpi_phnum; i++) {
    const ElfW(Phdr) *text = &program->dlpi_phdr[i];
    if (text->p_type != PT_LOAD || text->p_flags != PF_R) continue;
    const char *at = (const char *)program->dlpi_addr + text->p_vaddr, *end = at + text->p_filesz;
    for (; (at = memmem(at, end - at, name, strlen(name) + 1)); at++) {
      if (at[-1]) continue;
      for (int j = 0; j < program->dlpi_phnum; j++) {
        const ElfW(Phdr) *data = &program->dlpi_phdr[j];
        if (data->p_type != PT_LOAD || !(data->p_flags & PF_W)) continue;
        const char **table = (const char **)(program->dlpi_addr + data->p_vaddr);
        for (size_t k = 1; k < data->p_filesz / sizeof *table; k++)
          if (table[k] == at) return (unsigned char *)table[k - 1];
      }
    }
  }
  return NULL;
}
/* Pages of [start, end) get a protection. */
static int protect(void *start, void *end, int protection) {
  uintptr_t page = sysconf(_SC_PAGESIZE), first = (uintptr_t)start & -page;
  return mprotect((void *)first, (uintptr_t)end - first, protection);
}
static int replace(struct dl_phdr_info *program, size_t size, void *done) {
  unsigned char *code[OURS], jump[12] = {0x48, 0xb8, [10] = 0xff, 0xe0}; /* mov rax, FUNCTION; jmp rax */
  for (int i = 0; i < OURS; i++)
    if (!(code[i] = helper(program, ours[i].helper)) || protect(code[i], code[i] + sizeof jump, PROT_READ | PROT_WRITE | PROT_EXEC)) return 1;
  for (int i = 0; i < OURS; i++) {
    memcpy(jump + 2, &ours[i].function, 8);
    memcpy(code[i], jump, sizeof jump);
  }
  *(int *)done = 1;
  return 1; /* the first is the program itself */
}

/* -- in the guest's libraries ---------------------------------------------------------------------------------------- */

enum { MMAP = 222, MASK_VECTOR = 0xBFE0FC00, FMLA_VECTOR = 0x0E20CC00, UDOT_VECTOR = 0x2E809400 };
enum { MASK_ELEMENT = 0xBFC0F400, FMLA_ELEMENT = 0x0F801000, UDOT_ELEMENT = 0x2F80E000 };
static __thread int file = -1; /* that is being mapped to be run */
static __thread word start;     /* from where in it */

static void called(word id, unsigned cpu, int64_t number, word a, word length, word protection, word flags, word of, word from, word g, word h) {
  file = number == MMAP && protection & PROT_EXEC && !(flags & MAP_ANONYMOUS) ? (int)of : -1;
  start = from;
}
static void rewrite(uint32_t *code, uint32_t *end) {
  if (protect(code, end, PROT_READ | PROT_WRITE)) return;
  for (uint32_t *at = code; at < end; at++)
    if ((*at & MASK_VECTOR) == FMLA_VECTOR) *at ^= FMLA_VECTOR ^ UDOT_VECTOR;
    else if ((*at & MASK_ELEMENT) == FMLA_ELEMENT) *at ^= FMLA_ELEMENT ^ UDOT_ELEMENT;
  protect(code, end, PROT_READ);
}
/* Sections of code alone: what is mapped with them, a table of hashes say, may look like any instruction. */
static void returned(word id, unsigned cpu, int64_t number, int64_t result) {
  ElfW(Ehdr) header;
  if (number != MMAP || file < 0 || result < 0 || pread(file, &header, sizeof header, 0) != sizeof header) return;
  if (memcmp(header.e_ident, ELFMAG, SELFMAG)) return;
  for (int i = 0; i < header.e_shnum; i++) {
    ElfW(Shdr) section;
    pread(file, &section, sizeof section, header.e_shoff + i * sizeof section);
    if (section.sh_type == SHT_PROGBITS && section.sh_flags & SHF_EXECINSTR && section.sh_offset >= start)
      rewrite((uint32_t *)(result + section.sh_offset - start), (uint32_t *)(result + section.sh_offset - start + section.sh_size));
  }
}
EXPORT int qemu_plugin_install(word id, const void *info, int argc, char **argv) {
  int done = 0;
  if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2")) dl_iterate_phdr(replace, &done);
  if (!done) { fprintf(stderr, "host_math: another emulator or an old processor: emulation stays slow\n"); return 0; }
  qemu_plugin_register_vcpu_syscall_cb(id, called);
  qemu_plugin_register_vcpu_syscall_ret_cb(id, returned);
  return 0;
}
