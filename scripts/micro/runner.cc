// Runs what the host asks for on an exported program: commands in the file `job`, what came of them in `done`.
//
// Each command is three numbers of 32 bits: which, rows, and bytes of a row; then the bytes of each value of a row, and the
// rows. Each answer is a status, the ticks that it took (64 bits), how many bytes follow, and these.
#include <cstdarg>
#include <cstring>

#include "pocketune_model.h"
#include "start.h"

namespace {

using pocketune::Status;

constexpr uint32_t kValuesBytes = VALUES_BYTES, kMostValues = 16;
alignas(16) uint8_t arena[ARENA_BYTES];
alignas(16) uint8_t values[kValuesBytes];
alignas(16) uint8_t results[RESULT_BYTES];
pocketune::Value pointers[kMostValues * 64];

class Runner : public pocketune::Model {
 public:
  using Session::add;
  using Session::evaluate;
  using Session::features;
  using Session::infer;
  using Session::train;
};

Runner model;
int done;

// The two places are files of the host.
struct Files {
  char path[2][16];
  int open;
};
Files files = {{"place-0.state", "place-1.state"}, -1};

bool read_place(void*, int place, uint32_t offset, void* to, uint32_t count) {
  static int reading = -1, which = -1;
  static uint32_t at = 0;
  // One open file serves calls one behind the other.
  if (which != place || offset != at || offset == 0) {
    if (reading >= 0) host_close(reading);
    reading = host_open(files.path[place], 1);
    which = place;
    if (reading < 0 || !host_seek(reading, offset)) return false;
  }
  at = offset + count;
  const bool good = host_read(reading, to, count);
  if (!good) {
    host_close(reading);
    reading = which = -1;
  }
  return good;
}
bool begin_place(void*, int place, uint32_t) {
  files.open = host_open(files.path[place], 5);
  return files.open >= 0;
}
bool write_place(void*, int, uint32_t, const void* from, uint32_t count) {
  return host_write(files.open, from, count);
}
bool end_place(void*, int) { return host_close(files.open); }

const pocketune::Storage storage = {nullptr, read_place, begin_place, write_place, end_place};

void answer(Status status, uint64_t ticks, const void* data, uint32_t bytes) {
  const uint32_t front[4] = {static_cast<uint32_t>(status), static_cast<uint32_t>(ticks),
                             static_cast<uint32_t>(ticks >> 32), bytes};
  host_write(done, front, sizeof front);
  host_write(done, data, bytes);
}

// Runs one command; what it gives lies in `results`.
Status run(uint32_t command, uint32_t rows, uint32_t* bytes) {
  float loss = 0;
  Status status = Status::kRows;
  *bytes = 0;
  switch (command) {
    case 't': status = model.train(pointers, rows, &loss); break;
    case 'a': status = model.add(pointers, &loss); break;
    case 'k':  // the same of features that are computed before
      status = model.features(pointers, results);
      if (status == Status::kOk) status = model.add(pointers, &loss, results);
      break;
    case 'e':
      *bytes = 4 * pocketune::kProgram.figures;
      return model.evaluate(pointers, rows, reinterpret_cast<float*>(results));
    case 'i':
    case 'j': {  // of rows in int8
      for (uint32_t n = 0; command == 'j' && n < rows * pocketune::kProgram.values; ++n) pointers[n].stored = true;
      void* outputs[kMostValues];
      const pocketune::Signature& signature = pocketune::kProgram.infer;
      for (uint8_t i = 0; i < signature.output_count; ++i) {
        outputs[signature.outputs[i].index] = results + *bytes;
        *bytes += signature.outputs[i].bytes / signature.rows * rows;
      }
      return model.infer(pointers, pocketune::kProgram.values, rows, outputs);
    }
    case 's':
    case 'l': {
      const Status said = command == 's' ? model.save(storage) : model.load(storage);
      const uint64_t generation = model.generation();
      *bytes = sizeof generation;
      std::memcpy(results, &generation, sizeof generation);
      return said;
    }
    case 'r': model.reset(); return Status::kOk;
    case 'b': {  // begin again, in an arena of another size
      uint32_t size;
      std::memcpy(&size, values, sizeof size);
      return model.begin(arena, size);
    }
    case 'v': std::memcpy(&model.learning_rate, values, 4); return Status::kOk;
    case 'd':
      for (uint8_t i = 0; i < pocketune::kProgram.tensor_count; ++i) {
        const uint32_t size = pocketune::kProgram.tensors[i].bytes;
        std::memcpy(results + *bytes, model.tensor(i), size);
        *bytes += size;
      }
      return Status::kOk;
    default: break;
  }
  *bytes = sizeof loss;
  std::memcpy(results, &loss, sizeof loss);
  return status;
}

}  // namespace

extern "C" void DebugLog(const char* format, va_list) { host_print(format); }
extern "C" int DebugVsnprintf(char* to, size_t size, const char*, va_list) {
  if (size != 0) to[0] = 0;
  return 0;
}

int main() {
  const int job = host_open("job", 1);
  done = host_open("done", 5);
  counter_start();
  const uint64_t began = counter_ticks();
  const Status status = model.begin(arena, sizeof arena);
  const uint32_t sizes[2] = {static_cast<uint32_t>(model.arena_used()), static_cast<uint32_t>(sizeof model)};
  answer(status, counter_ticks() - began, sizes, sizeof sizes);
  uint32_t front[3];
  while (status == Status::kOk && host_read(job, front, sizeof front)) {
    const uint32_t rows = front[1], given = front[2], count = pocketune::kProgram.values;
    uint32_t sizes_of[kMostValues] = {}, at = 0;
    if (rows * given > kValuesBytes || count > kMostValues || rows > 64) return 2;
    host_read(job, sizes_of, 4 * count);
    host_read(job, values, rows * given);
    for (uint32_t r = 0; r < rows; ++r) {
      for (uint32_t i = 0; i < count; ++i) {
        pointers[r * count + i] = {values + at};
        at += sizes_of[i];
      }
    }
    uint32_t bytes;
    const uint64_t start = counter_ticks();
    const Status said = run(front[0], rows, &bytes);
    const uint64_t ticks = counter_ticks() - start;
    answer(said, ticks, results, bytes);
  }
  host_close(done);
  return status == Status::kOk ? 0 : 1;
}
