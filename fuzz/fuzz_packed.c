/*
 * Fuzzes the head of a file of packed weights: whatever it says, no entry leads outside of the file, and no checksum is
 * looked for outside of the head.
 */
#include <stdlib.h>

#include "model/packed_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    firni_packed_head head;
    if (firni_packed_head_decode(data, n_bytes, n_bytes, &head, NULL) != FIRN_OK) {
        return 0;
    }
    (void)firni_packed_head_verify(&head, data, NULL);
    for (uint32_t i = 0; i < head.n_entries; i++) {
        firni_packed_entry entry;
        firni_packed_entry_decode(&head, data, i, &entry);
    }
    for (uint32_t i = 0; i < head.n_chunks; i++) {
        uint64_t begin;
        uint64_t end;
        firni_packed_chunk_range(&head, i, &begin, &end);
        if (begin > end || end > n_bytes) {
            abort();
        }
        (void)firni_packed_sum_decode(&head, data, i);
    }
    return 0;
}
