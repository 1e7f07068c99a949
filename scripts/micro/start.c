// Start-up of a Cortex-M board that QEMU emulates, files of the host by semihosting, and a counter of instructions.
#include "start.h"

extern uint32_t _etext, _sdata, _edata, _sbss, _ebss, _estack;
extern void (*__init_array_start[])(void), (*__init_array_end[])(void);
int main(void);
void abort(void) __attribute__((noreturn));

static volatile uint32_t rounds;  // of the counter's 24 bits

#define SYSTICK ((volatile uint32_t*)0xE000E010)

static int call(int operation, const void* arguments) {
  register int r0 __asm("r0") = operation;
  register const void* r1 __asm("r1") = arguments;
  __asm volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}

__attribute__((noreturn)) void host_exit(int status) {
  uint32_t block[2] = {0x20026, (uint32_t)status};
  call(0x20, block);
  for (;;) {
  }
}

int host_open(const char* path, int mode) {
  uint32_t length = 0;
  while (path[length]) ++length;
  uint32_t block[3] = {(uint32_t)path, (uint32_t)mode, length};
  return call(0x01, block);
}

int host_close(int file) {
  uint32_t block[1] = {(uint32_t)file};
  return call(0x02, block) == 0;
}

int host_write(int file, const void* from, uint32_t count) {
  uint32_t block[3] = {(uint32_t)file, (uint32_t)from, count};
  return count == 0 || call(0x05, block) == 0;
}

int host_read(int file, void* to, uint32_t count) {
  uint32_t block[3] = {(uint32_t)file, (uint32_t)to, count};
  return count == 0 || call(0x06, block) == 0;
}

int host_seek(int file, uint32_t offset) {
  uint32_t block[2] = {(uint32_t)file, offset};
  return call(0x0A, block) == 0;
}

void host_print(const char* text) { call(0x04, text); }

void counter_start(void) {
  rounds = 0;
  SYSTICK[1] = 0xFFFFFF;
  SYSTICK[2] = 0;
  SYSTICK[0] = 7;
}

uint64_t counter_ticks(void) {
  uint32_t before, ticks;
  do {
    before = rounds;
    ticks = 0xFFFFFF - SYSTICK[2];
  } while (before != rounds);
  return ((uint64_t)before << 24) + ticks;
}

void Tick_Handler(void) { ++rounds; }

void Fault_Handler(void) {
  host_print("the board ended in a fault\n");
  host_exit(3);
}

void Reset_Handler(void) {
  *(volatile uint32_t*)0xE000ED88 |= 0xFu << 20;  // the floating point unit
  __asm volatile("dsb\nisb");
  for (uint32_t *from = &_etext, *to = &_sdata; to < &_edata;) *to++ = *from++;
  for (uint32_t* to = &_sbss; to < &_ebss;) *to++ = 0;
  for (void (**function)(void) = __init_array_start; function < __init_array_end; ++function) (*function)();
  host_exit(main());
}

void abort(void) {
  host_print("the board aborted\n");
  host_exit(4);
}

// The library's own would write by its streams, which take the heap.
void __assert_func(const char* file, int line, const char* function, const char* what) {
  (void)file, (void)line, (void)function;
  host_print(what);
  abort();
}

// Nothing is destroyed at the end; the library's own list would come from the heap.
void* __dso_handle = 0;
int __cxa_atexit(void (*function)(void*), void* object, void* handle) {
  (void)function, (void)object, (void)handle;
  return 0;
}

__attribute__((section(".vectors"), used)) void (*const vectors[16])(void) = {
    (void (*)(void))&_estack, Reset_Handler, Fault_Handler, Fault_Handler, Fault_Handler, Fault_Handler,
    Fault_Handler,            Fault_Handler, 0,             0,             0,             Fault_Handler,
    Fault_Handler,            0,             Fault_Handler, Tick_Handler};
