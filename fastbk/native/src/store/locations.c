/* Reading locations files: loading one into the searched set, and its blocks through the cache. */
#include "base/checksum.h"
#include "base/segment.h"
#include "store/entry_log.h"
#include "store/parts.h"

#define LOAD_BYTES (64u * FBK_LOCATIONS_BLOCK_BYTES)

static bool
block_is_whole(const uint8_t *bytes, uint64_t number_in_file)
{
    return fbk_load_u32(bytes + FBK_LOCATIONS_BLOCK_BYTES - 8) == (uint32_t)number_in_file &&
           fbk_load_u32(bytes + FBK_LOCATIONS_BLOCK_BYTES - 4) ==
               fbk_crc32c(0, bytes, FBK_LOCATIONS_BLOCK_BYTES - 4);
}

static uint32_t
locations_in_block(const struct fbk_locations_header *header, uint64_t block)
{
    uint64_t left = header->location_count - block * FBK_LOCATIONS_PER_BLOCK;
    return left < FBK_LOCATIONS_PER_BLOCK ? (uint32_t)left : FBK_LOCATIONS_PER_BLOCK;
}

/* The checksum says that these bytes are the ones once written; this says that they make sense. */
static bool
location_block_is_good(const struct fbk_locations_header *header, const uint8_t *bytes,
                       uint64_t block)
{
    if (!block_is_whole(bytes, 1 + block))
        return false;
    uint32_t count = locations_in_block(header, block);
    struct fbk_location previous = {.ledger_id = -1}, location;
    for (uint32_t i = 0; i < count; i++) {
        memcpy(&location, bytes + i * sizeof location, sizeof location);
        if (!fbk_location_is_sane(&location) ||
            fbk_location_compare(previous.ledger_id, previous.first_entry_id, location.ledger_id,
                                 location.first_entry_id) > 0 ||
            (previous.ledger_id == location.ledger_id &&
             previous.last_entry_id_max > location.last_entry_id_max))
            return false;
        previous = location;
    }
    return true;
}

static int32_t
check_header(const struct fbk_locations_header *header, uint64_t file_id, uint64_t incarnation,
             int64_t file_bytes)
{
    if (header->magic != FBK_LOCATIONS_MAGIC ||
        header->crc != fbk_crc32c(0, header, offsetof(struct fbk_locations_header, crc)))
        return FBK_E_CORRUPT;
    if (header->version == 0 || header->version > FBK_LOCATIONS_VERSION)
        return header->version > FBK_LOCATIONS_VERSION ? FBK_E_TOO_NEW : FBK_E_CORRUPT;
    if (header->file_id != file_id || header->incarnation != incarnation ||
        header->last_generation < header->first_generation)
        return FBK_E_CORRUPT;
    uint64_t blocks_max = (uint64_t)file_bytes / FBK_LOCATIONS_BLOCK_BYTES;
    if (header->location_blocks >= blocks_max || header->state_blocks >= blocks_max ||
        1 + header->location_blocks + header->state_blocks > blocks_max)
        return FBK_E_CORRUPT;
    if (header->location_blocks !=
            (header->location_count + FBK_LOCATIONS_PER_BLOCK - 1) / FBK_LOCATIONS_PER_BLOCK ||
        header->state_blocks !=
            (header->state_count + FBK_STATES_PER_BLOCK - 1) / FBK_STATES_PER_BLOCK)
        return FBK_E_CORRUPT;
    return 0;
}

/* Notes the key of block `block`, or that it is damaged. */
static void
index_block(struct fbk_locations_file *file, uint64_t block, const uint8_t *bytes)
{
    struct fbk_location location;
    bool good = bytes != NULL && location_block_is_good(&file->header, bytes, block);
    if (good) {
        memcpy(&location, bytes, sizeof location);
        if (block > 0 && fbk_location_compare(file->keys[block - 1].ledger_id,
                                              file->keys[block - 1].first_entry_id,
                                              location.ledger_id, location.first_entry_id) > 0)
            good = false;
    }
    if (good) {
        file->keys[block] = (struct fbk_sparse_key){location.ledger_id, location.first_entry_id};
        for (uint32_t i = 0, count = locations_in_block(&file->header, block); i < count; i++) {
            memcpy(&location, bytes + i * sizeof location, sizeof location);
            file->entry_count += location.flags & FBK_LOCATION_DAMAGED ? 0 : location.entry_count;
        }
        return;
    }
    file->damaged[block] = 1;
    file->damaged_blocks++;
    file->keys[block] = block > 0 ? file->keys[block - 1] : (struct fbk_sparse_key){-1, -1};
}

/* A disk that does not give its bytes may do so later.  A file that is gone, short or wrong is
 * damaged for good. */
static bool
may_pass(int32_t error)
{
    return error < 0 && error != FBK_E_CORRUPT && error != -ENOENT && error != -ENODATA;
}

/* Reads all blocks behind the header once. */
static int32_t
read_through(struct fbk_store *store, struct fbk_locations_file *file)
{
    const struct fbk_locations_header *header = &file->header;
    uint64_t total = header->location_blocks + header->state_blocks;
    uint8_t *memory = fbk_memory_take(LOAD_BYTES);
    if (!memory)
        return -ENOMEM;
    uint64_t step = LOAD_BYTES / FBK_LOCATIONS_BLOCK_BYTES;
    for (uint64_t block = 0; block < total;) {
        uint64_t count = total - block < step ? total - block : step;
        uint64_t offset = (1 + block) * FBK_LOCATIONS_BLOCK_BYTES;
        int32_t result = fbk_store_read_all(store->reader_io, file->handle, memory,
                                            count * FBK_LOCATIONS_BLOCK_BYTES, offset);
        if (result < 0 && count > 1) {
            step = 1; /* find out which block it is */
            continue;
        }
        if (may_pass(result))
            file->read_error = result;
        for (uint64_t i = 0; i < count; i++) {
            const uint8_t *bytes = result < 0 ? NULL : memory + i * FBK_LOCATIONS_BLOCK_BYTES;
            if (block + i < header->location_blocks)
                index_block(file, block + i, bytes);
            else if (bytes == NULL || !block_is_whole(bytes, 1 + block + i))
                file->damaged_state_blocks++;
        }
        block += count;
    }
    fbk_memory_give_back(memory, LOAD_BYTES);
    return 0;
}

static int32_t
load_header(struct fbk_store *store, struct fbk_locations_file *file)
{
    uint8_t *block = fbk_memory_take(FBK_LOCATIONS_BLOCK_BYTES);
    if (!block)
        return -ENOMEM;
    int64_t file_bytes = store->reader_io->operations->size(store->reader_io, file->handle);
    int32_t result = file_bytes < 0 ? (int32_t)file_bytes
                                    : fbk_store_read_all(store->reader_io, file->handle, block,
                                                         FBK_LOCATIONS_BLOCK_BYTES, 0);
    if (result >= 0) {
        memcpy(&file->header, block, sizeof file->header);
        result = check_header(&file->header, file->file_id, store->options.incarnation, file_bytes);
    }
    fbk_memory_give_back(block, FBK_LOCATIONS_BLOCK_BYTES);
    return result;
}

static void
free_file(struct fbk_store *store, struct fbk_locations_file *file)
{
    if (file->handle >= 0)
        store->reader_io->operations->close(store->reader_io, file->handle);
    free(file->keys);
    free(file->damaged);
    free(file);
}

int32_t
fbk_locations_load(struct fbk_store *store, uint64_t file_id, struct fbk_locations_file **out)
{
    char path[FBK_STORE_PATH_BYTES];
    int32_t result = fbk_store_path(store, path, "locations", file_id, "loc");
    if (result < 0)
        return result;
    struct fbk_locations_file *file = calloc(1, sizeof *file);
    if (!file)
        return -ENOMEM;
    file->file_id = file_id;
    file->references = 1;
    file->handle = store->reader_io->operations->open(store->reader_io, path, FBK_IO_READ_ONLY);
    result = file->handle < 0 ? file->handle : load_header(store, file);
    if (result == FBK_E_TOO_NEW || result == -ENOMEM) {
        free_file(store, file);
        return result;
    }
    if (result < 0) {
        /* Named by the manifest, yet missing or unreadable: it could have held anything. */
        memset(&file->header, 0, sizeof file->header);
        file->damaged_whole = true;
        file->read_error = may_pass(result) ? result : 0;
        *out = file;
        return 1;
    }
    uint64_t blocks = file->header.location_blocks;
    file->keys = calloc(blocks + 1, sizeof *file->keys);
    file->damaged = calloc(blocks + 1, 1);
    file->index_bytes = (blocks + 1) * (sizeof *file->keys + 1);
    result = file->keys && file->damaged ? read_through(store, file) : -ENOMEM;
    if (result < 0) {
        free_file(store, file);
        return result;
    }
    *out = file;
    return file->damaged_blocks > 0 || file->damaged_state_blocks > 0;
}

void
fbk_locations_unref(struct fbk_store *store, struct fbk_locations_file *file)
{
    fbk_store_lock(store);
    FBK_ASSERT(file->references > 0);
    bool last = --file->references == 0;
    fbk_store_unlock(store);
    if (last)
        free_file(store, file);
}

/* 0, or < 0 if it can't be read or is not the block that was there when the file was loaded. */
static int32_t
read_location_block(struct fbk_store *store, const struct fbk_locations_file *file, uint64_t block,
                    uint8_t *bytes)
{
    struct fbk_location first;
    int32_t result =
        fbk_store_read_all(store->reader_io, file->handle, bytes, FBK_LOCATIONS_BLOCK_BYTES,
                           (1 + block) * FBK_LOCATIONS_BLOCK_BYTES);
    if (result < 0)
        return result;
    if (!location_block_is_good(&file->header, bytes, block))
        return FBK_E_CORRUPT;
    memcpy(&first, bytes, sizeof first);
    if (!file->damaged[block] &&
        fbk_location_compare(first.ledger_id, first.first_entry_id, file->keys[block].ledger_id,
                             file->keys[block].first_entry_id) != 0)
        return FBK_E_CORRUPT;
    return 0;
}

int32_t
fbk_locations_block(struct fbk_store *store, const struct fbk_locations_file *file, uint64_t block,
                    enum fbk_block_use use, struct fbk_location *out)
{
    FBK_ASSERT(block < file->header.location_blocks);
    uint32_t count = locations_in_block(&file->header, block);
    fbk_store_lock(store);
    const uint8_t *cached = fbk_block_cache_find(&store->block_cache, file->file_id, block);
    if (cached) {
        memcpy(out, cached, count * sizeof *out);
        store->counts.block_hits++;
    }
    fbk_store_unlock(store);
    if (cached)
        return (int32_t)count;
    if (use == FBK_BLOCK_CACHED)
        return -EAGAIN;

    _Alignas(FBK_PAGE_BYTES) uint8_t bytes[FBK_LOCATIONS_BLOCK_BYTES];
    int32_t result = read_location_block(store, file, block, bytes);
    if (result < 0) /* the disk's moment, or the disk's end? */
        result = read_location_block(store, file, block, bytes);
    if (result >= 0)
        memcpy(out, bytes, count * sizeof *out);
    fbk_store_lock(store);
    store->counts.block_reads++;
    if (result < 0) {
        store->counts.damaged_blocks++;
        /* One that was damaged when the file was loaded was told of then. */
        if (!file->damaged[block] && result != -ENOMEM)
            fbk_store_note_damage(store,
                                  &(struct fbk_location){
                                      .ledger_id = -1,
                                      .first_entry_id = -1,
                                      .last_entry_id = -1,
                                      .log_id = file->file_id,
                                      .offset_bytes = (1 + block) * FBK_LOCATIONS_BLOCK_BYTES,
                                  });
    } else if (use == FBK_BLOCK_KEPT)
        fbk_block_cache_put(&store->block_cache, file->file_id, block, bytes);
    fbk_store_unlock(store);
    return result < 0 ? result : (int32_t)count;
}

int32_t
fbk_locations_state_block(struct fbk_store *store, const struct fbk_locations_file *file,
                          uint64_t block, struct fbk_ledger_state *out)
{
    FBK_ASSERT(block < file->header.state_blocks);
    _Alignas(FBK_PAGE_BYTES) uint8_t bytes[FBK_LOCATIONS_BLOCK_BYTES];
    uint64_t number = 1 + file->header.location_blocks + block;
    int32_t result = fbk_store_read_all(store->reader_io, file->handle, bytes, sizeof bytes,
                                        number * FBK_LOCATIONS_BLOCK_BYTES);
    if (result < 0)
        return result;
    if (!block_is_whole(bytes, number))
        return FBK_E_CORRUPT;
    uint64_t left = file->header.state_count - block * FBK_STATES_PER_BLOCK;
    uint32_t count = left < FBK_STATES_PER_BLOCK ? (uint32_t)left : FBK_STATES_PER_BLOCK;
    memcpy(out, bytes, count * sizeof *out);
    for (uint32_t i = 0; i < count; i++) {
        if (out[i].ledger_id < 0 ||
            out[i].crc != fbk_crc32c(0, &out[i], offsetof(struct fbk_ledger_state, crc)) ||
            (i > 0 && out[i].ledger_id <= out[i - 1].ledger_id))
            return FBK_E_CORRUPT;
    }
    return (int32_t)count;
}
