#include "pocketune_sha256.h"

namespace pocketune {
namespace {

constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

constexpr uint32_t rotated(uint32_t value, int by) { return (value >> by) | (value << (32 - by)); }

}  // namespace

void Sha256::block() {
  uint32_t words[64];
  for (int i = 0; i < 16; ++i) {
    const uint8_t* at = buffer_ + 4 * i;
    words[i] = uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | at[3];
  }
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = words[i - 15], b = words[i - 2];
    words[i] = words[i - 16] + (rotated(a, 7) ^ rotated(a, 18) ^ (a >> 3)) + words[i - 7] +
               (rotated(b, 17) ^ rotated(b, 19) ^ (b >> 10));
  }
  uint32_t s[8];
  for (int i = 0; i < 8; ++i) s[i] = hash_[i];
  for (int i = 0; i < 64; ++i) {
    const uint32_t first = s[7] + (rotated(s[4], 6) ^ rotated(s[4], 11) ^ rotated(s[4], 25)) +
                           ((s[4] & s[5]) ^ (~s[4] & s[6])) + kRounds[i] + words[i];
    const uint32_t second =
        (rotated(s[0], 2) ^ rotated(s[0], 13) ^ rotated(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
    for (int j = 7; j > 0; --j) s[j] = s[j - 1];
    s[4] += first;
    s[0] = first + second;
  }
  for (int i = 0; i < 8; ++i) hash_[i] += s[i];
}

void Sha256::add(const void* data, size_t size) {
  const uint8_t* bytes = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < size; ++i) {
    buffer_[size_++ % 64] = bytes[i];
    if (size_ % 64 == 0) block();
  }
}

void Sha256::finish(uint8_t* digest) {
  const uint64_t bits = size_ * 8;
  const uint8_t one = 0x80, zero = 0;
  add(&one, 1);
  while (size_ % 64 != 56) add(&zero, 1);
  uint8_t length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  add(length, sizeof length);
  for (int i = 0; i < 32; ++i) digest[i] = static_cast<uint8_t>(hash_[i / 4] >> (24 - 8 * (i % 4)));
}

}  // namespace pocketune
