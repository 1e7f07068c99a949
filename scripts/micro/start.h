// What start.c offers: files of the host, its console, and a counter.
#ifndef START_H_
#define START_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Ends the emulator with a status.
__attribute__((noreturn)) void host_exit(int status);
// Opens a file as fopen's mode of that number (1: "rb", 5: "wb"); negative where there is none.
int host_open(const char* path, int mode);
int host_close(int file);
// Return whether all bytes were written or read.
int host_write(int file, const void* from, uint32_t count);
int host_read(int file, void* to, uint32_t count);
int host_seek(int file, uint32_t offset);
void host_print(const char* text);

void counter_start(void);
// Ticks of the processor's clock since then.
uint64_t counter_ticks(void);

#ifdef __cplusplus
}
#endif

#endif  // START_H_
