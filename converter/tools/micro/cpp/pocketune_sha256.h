// SHA-256 (FIPS 180-4), of bytes as they come.
#ifndef POCKETUNE_SHA256_H_
#define POCKETUNE_SHA256_H_

#include <cstddef>
#include <cstdint>

namespace pocketune {

class Sha256 {
 public:
  static constexpr uint32_t kBytes = 32;
  void add(const void* data, size_t size);
  // Writes the digest; nothing may be added behind it.
  void finish(uint8_t* digest);

 private:
  void block();

  uint32_t hash_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint8_t buffer_[64] = {};
  uint64_t size_ = 0;
};

}  // namespace pocketune

#endif  // POCKETUNE_SHA256_H_
