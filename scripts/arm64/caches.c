/* QEMU 7.2 TCG plugin: data accesses between syscall(5000,1) and syscall(5000,2), as the emulator makes them (of 8 bytes at
   most), and how many miss in simulated caches, which are warm from what ran before */
#include <stddef.h>
#include <stdio.h>
#include "cache_model.h"
typedef uint64_t id_t_; struct qemu_plugin_tb; struct qemu_plugin_insn;
enum { NO_REGISTERS, READ_OR_WRITE = 3 };
__attribute__((visibility("default"))) int qemu_plugin_version = 1;
void qemu_plugin_register_vcpu_tb_trans_cb(id_t_, void (*)(id_t_, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, void (*)(unsigned, uint32_t, uint64_t, void *), int, int, void *);
void qemu_plugin_register_vcpu_syscall_cb(id_t_, void (*)(id_t_, unsigned, int64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t));
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
unsigned qemu_plugin_mem_size_shift(uint32_t);

static void access(unsigned cpu, uint32_t kind, uint64_t address, void *unused) { touch(address, 1u << qemu_plugin_mem_size_shift(kind)); }
static void trans(id_t_ id, struct qemu_plugin_tb *tb) {
  for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++)
    qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(tb, i), access, NO_REGISTERS, READ_OR_WRITE, NULL);
}
static void sys(id_t_ id, unsigned v, int64_t num, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g, uint64_t h) {
  if (num != 5000) return;
  if (a == 2) fprintf(stderr, "CACHES accesses=%lu l1=%lu l2=%lu l3=%lu\n", accesses, misses[0], misses[1], misses[2]);
  accesses = 0;
  memset(misses, 0, sizeof misses);
}
__attribute__((visibility("default"))) int qemu_plugin_install(id_t_ id, const void *info, int argc, char **argv) {
  qemu_plugin_register_vcpu_tb_trans_cb(id, trans); qemu_plugin_register_vcpu_syscall_cb(id, sys); return 0;
}
