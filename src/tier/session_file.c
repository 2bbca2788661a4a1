/*
 * Session files: one head, then the memory of the row's blocks and states, layer by layer.
 *
 *      +---------------------------------------------+-- ... --+-- ... --+
 *      | head, n x 4 KiB: facts, id, identity's text,| image   | image   |
 *      | tokens, table of images                     |         |         |
 *      +---------------------------------------------+-- ... --+-- ... --+
 *
 * Which images there are follows from the schema and the number of tokens: of each layer the blocks that the next token
 * needs, then its fixed-size state. The table in the head must be just that, so nothing of it is taken on trust; each
 * image has a checksum. Owns this form, in both directions; knows nothing of tiers.
 */
#include <assert.h>
#include <string.h>

#include "array/array_impl.h"
#include "base/base_impl.h"
#include "firn/session_file.h"
#include "record/bytes_impl.h"
#include "record/record_impl.h"

#define VERSION        1u
#define FIXED_BYTES    96u
#define IMAGE_BYTES    32u /* of the table */
#define STATE_INDEX    UINT32_MAX
#define TEXT_BYTES_MAX 65536u
#define TOKENS_MAX     (1u << 24)
#define HEAD_BYTES_MAX (UINT64_C(256) << 20)

static const uint8_t magic[8] = { 0x89, 'F', 'I', 'R', 'N', 'S', 0x0d, 0x0a };

/* One image: a block of a layer, or its state. */
typedef struct image {
    uint32_t layer, index;
    uint64_t n_bytes;
    firn_block *block; /* borrowed when writing, owned when reading */
} image;

typedef struct image_list {
    image *list;
    uint32_t n, n_max;
} image_list;

static uint32_t blocks_of(uint32_t n_tokens)
{
    return (n_tokens + FIRN_BLOCK_TOKENS - 1) / FIRN_BLOCK_TOKENS;
}

static uint32_t first_block_of(const firn_cache *shape, uint32_t n_tokens)
{
    return firn_cache_block_bytes(shape) > 0 ? firn_cache_first_block_needed(shape, n_tokens) : blocks_of(n_tokens);
}

/* The images of a row of n_tokens, without their blocks. False without memory. */
static bool list_images(const firn_cache *const *shapes, uint32_t n_layers, uint32_t n_tokens, const firn_env *env,
                        image_list *out)
{
    *out = (image_list){ .list = NULL };
    size_t n_max;
    if (!firni_mul_size(n_layers, (size_t)blocks_of(n_tokens) + 1, &n_max)) {
        return false;
    }
    out->list = firni_calloc(env, n_max, sizeof *out->list);
    for (uint32_t layer = 0; out->list != NULL && layer < n_layers; layer++) {
        const firn_cache *shape = shapes[layer];
        for (uint32_t i = first_block_of(shape, n_tokens); i < blocks_of(n_tokens); i++) {
            out->list[out->n++] = (image){ .layer = layer, .index = i, .n_bytes = firn_cache_block_bytes(shape) };
        }
        if (firn_cache_fixed_bytes(shape) > 0) {
            out->list[out->n++] =
                (image){ .layer = layer, .index = STATE_INDEX, .n_bytes = firn_cache_fixed_bytes(shape) };
        }
    }
    return out->list != NULL;
}

static uint64_t head_bytes_of(uint64_t n_id, uint64_t n_text, uint64_t n_tokens, uint64_t n_images)
{
    return firni_round_up(FIXED_BYTES + n_id + n_text + 4 * n_tokens + IMAGE_BYTES * n_images, FIRNI_RECORD_ALIGN);
}

static void put_image(uint8_t *at, const image *one, firni_checksum checksum)
{
    firni_put_u32(at, one->layer);
    firni_put_u32(at + 4, one->index);
    firni_put_u64(at + 8, one->n_bytes);
    firni_put_u64(at + 16, checksum.low);
    firni_put_u64(at + 24, checksum.high);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* The row's own blocks. False: it lacks one, or one has another size. */
static bool find_blocks(const firn_cache *const *caches, image_list *images)
{
    for (uint32_t i = 0; i < images->n; i++) {
        image *one = &images->list[i];
        const firn_row_view view = firn_cache_view_row(caches[one->layer], 0);
        if (one->index == STATE_INDEX) {
            one->block = view.fixed;
        } else if (one->index >= view.first_block && one->index - view.first_block < view.n_blocks) {
            one->block = view.blocks[one->index - view.first_block];
        }
        if (one->block == NULL || firn_block_bytes(one->block) != one->n_bytes) {
            return false;
        }
    }
    return true;
}

static firn_status check_row(const firn_schema *schema, const char *id, uint32_t n_tokens,
                             const firn_cache *const *caches, firn_error *err)
{
    if (n_tokens == 0 || n_tokens > TOKENS_MAX || strlen(id) > FIRN_SESSION_ID_BYTES_MAX ||
        strlen(schema->identity_text) > TEXT_BYTES_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "a session of %u tokens and a name of %zu bytes cannot be written",
                          n_tokens, strlen(id));
    }
    for (uint32_t layer = 0; layer < schema->n_layers; layer++) {
        if (firn_cache_batch_size(caches[layer]) != 1 || !firn_cache_can_publish_row(caches[layer], 0, n_tokens)) {
            return firni_fail(err, FIRN_ERR_INVALID, "layer %u does not stand at %u tokens", layer, n_tokens);
        }
    }
    return FIRN_OK;
}

static uint8_t *encode_head(const firn_schema *schema, const char *id, const firn_token *tokens, uint32_t n_tokens,
                            const image_list *images, const firn_env *env, uint64_t *head_bytes)
{
    const size_t n_id = strlen(id), n_text = strlen(schema->identity_text);
    *head_bytes = head_bytes_of(n_id, n_text, n_tokens, images->n);
    uint8_t *head = firni_calloc(env, (size_t)*head_bytes, 1);
    if (head == NULL) {
        return NULL;
    }
    uint64_t file_bytes = *head_bytes;
    uint8_t *at = head + FIXED_BYTES;
    memcpy(at, id, n_id);
    memcpy(at + n_id, schema->identity_text, n_text);
    at += n_id + n_text;
    for (uint32_t i = 0; i < n_tokens; i++, at += 4) {
        firni_put_u32(at, tokens[i]);
    }
    for (uint32_t i = 0; i < images->n; i++, at += IMAGE_BYTES) {
        const image *one = &images->list[i];
        put_image(at, one, firni_checksum_of(firn_block_data(one->block), (size_t)one->n_bytes));
        file_bytes += one->n_bytes;
    }
    memcpy(head, magic, sizeof magic);
    firni_put_u32(head + 24, VERSION);
    firni_put_u32(head + 28, (uint32_t)*head_bytes);
    firni_put_u32(head + 32, n_tokens);
    firni_put_u32(head + 36, images->n);
    firni_put_u64(head + 40, file_bytes);
    firni_put_u64(head + 48, firni_wall_ns(env));
    firni_put_u32(head + 56, (uint32_t)n_id);
    firni_put_u32(head + 60, (uint32_t)n_text);
    memcpy(head + 64, schema->identity.bytes, sizeof schema->identity.bytes);
    const firni_checksum checksum = firni_checksum_of(head + 24, (size_t)*head_bytes - 24);
    firni_put_u64(head + 8, checksum.low);
    firni_put_u64(head + 16, checksum.high);
    return head;
}

firn_status firn_session_write(const firn_schema *schema, const char *id, const firn_token *tokens, uint32_t n_tokens,
                               const firn_cache *const *caches, firn_session_sink sink, void *ctx, const firn_env *env,
                               firn_error *err)
{
    id = id != NULL ? id : "";
    firn_status status = check_row(schema, id, n_tokens, caches, err);
    if (status != FIRN_OK) {
        return status;
    }
    image_list images;
    uint64_t head_bytes = 0;
    uint8_t *head = NULL;
    if (!list_images(caches, schema->n_layers, n_tokens, env, &images)) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to write a session of %u tokens", n_tokens);
    } else if (!find_blocks(caches, &images)) {
        status = firni_fail(err, FIRN_ERR_INVALID, "the rows lack a part of the state of %u tokens", n_tokens);
    } else if ((head = encode_head(schema, id, tokens, n_tokens, &images, env, &head_bytes)) == NULL) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory to write a session of %u tokens", n_tokens);
    } else {
        bool ok = sink(ctx, head, (size_t)head_bytes);
        for (uint32_t i = 0; i < images.n && ok; i++) {
            ok = sink(ctx, firn_block_data(images.list[i].block), (size_t)images.list[i].n_bytes);
        }
        status = ok ? FIRN_OK : firni_fail(err, FIRN_ERR_IO, "the session could not be written");
    }
    firni_free(env, head);
    firni_free(env, images.list);
    return status;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct head_facts {
    uint32_t head_bytes, n_tokens, n_images, n_id, n_text;
} head_facts;

/* The fixed part: sizes that are within their limits and agree with each other. */
static firn_status read_facts(const uint8_t fixed[FIXED_BYTES], head_facts *out, firn_error *err)
{
    if (memcmp(fixed, magic, sizeof magic) != 0) {
        return firni_fail(err, FIRN_ERR_FORMAT, "this is no exported session");
    }
    if (firni_get_u32(fixed + 24) != VERSION) {
        return firni_fail(err, FIRN_ERR_FORMAT, "the session has version %u; this build reads version %u",
                          firni_get_u32(fixed + 24), VERSION);
    }
    *out = (head_facts){ .head_bytes = firni_get_u32(fixed + 28),
                         .n_tokens = firni_get_u32(fixed + 32),
                         .n_images = firni_get_u32(fixed + 36),
                         .n_id = firni_get_u32(fixed + 56),
                         .n_text = firni_get_u32(fixed + 60) };
    if (out->n_tokens == 0 || out->n_tokens > TOKENS_MAX || out->n_id > FIRN_SESSION_ID_BYTES_MAX ||
        out->n_text > TEXT_BYTES_MAX || out->head_bytes > HEAD_BYTES_MAX ||
        out->head_bytes != head_bytes_of(out->n_id, out->n_text, out->n_tokens, out->n_images)) {
        return firni_fail(err, FIRN_ERR_CORRUPT, "the head of the session is damaged");
    }
    return FIRN_OK;
}

static firn_status read_head(firn_session_source source, void *ctx, const firn_env *env, uint8_t **out,
                             head_facts *facts, firn_error *err)
{
    uint8_t fixed[FIXED_BYTES];
    if (!source(ctx, fixed, sizeof fixed)) {
        return firni_fail(err, FIRN_ERR_FORMAT, "this is no exported session: it is too short");
    }
    firn_status status = read_facts(fixed, facts, err);
    if (status != FIRN_OK) {
        return status;
    }
    /* Grown as bytes arrive: a head that claims more than the file has costs no more than the file. */
    uint8_t *head = NULL;
    size_t n_have = 0;
    while (n_have < facts->head_bytes) {
        const size_t n_left = facts->head_bytes - n_have, n_step = n_left < 1048576 ? n_left : 1048576;
        uint8_t *grown = firni_grow(env, head, n_have, n_have + n_step, 1);
        if (grown == NULL) {
            firni_free(env, head);
            return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the head of a session");
        }
        head = grown;
        const size_t n_fixed = n_have == 0 ? sizeof fixed : 0;
        memcpy(head + n_have, fixed, n_fixed);
        if (!source(ctx, head + n_have + n_fixed, n_step - n_fixed)) {
            firni_free(env, head);
            return firni_fail(err, FIRN_ERR_CORRUPT, "the session ends within its head");
        }
        n_have += n_step;
    }
    const firni_checksum checksum = firni_checksum_of(head + 24, facts->head_bytes - 24);
    if (checksum.low != firni_get_u64(head + 8) || checksum.high != firni_get_u64(head + 16)) {
        firni_free(env, head);
        return firni_fail(err, FIRN_ERR_CORRUPT, "the head of the session is damaged");
    }
    *out = head;
    return FIRN_OK;
}

/* Another model's state is of no use here; the text says in what it is another. */
static firn_status check_identity(const firn_schema *schema, const uint8_t *head, const head_facts *facts,
                                  const firn_env *env, firn_error *err)
{
    if (memcmp(head + 64, schema->identity.bytes, sizeof schema->identity.bytes) == 0) {
        return FIRN_OK;
    }
    char difference[300] = "their identities differ";
    char *text = firni_calloc(env, (size_t)facts->n_text + 1, 1);
    if (text != NULL) {
        memcpy(text, head + FIXED_BYTES + facts->n_id, facts->n_text);
        (void)firn_identity_explain(schema->identity_text, text, difference, sizeof difference);
        firni_free(env, text);
    }
    return firni_fail(err, FIRN_ERR_SIGNATURE, "the session was made by another model: %s", difference);
}

/* Fresh blocks with what the file has for them. */
static firn_status read_images(const uint8_t *table, firn_pool *pool, firn_session_source source, void *ctx,
                               image_list *images, firn_error *err)
{
    for (uint32_t i = 0; i < images->n; i++) {
        image *one = &images->list[i];
        const uint8_t *at = table + (size_t)i * IMAGE_BYTES;
        uint8_t expected[IMAGE_BYTES];
        firn_status status = firni_block_alloc_undefined(pool, (size_t)one->n_bytes, &one->block, err);
        if (status != FIRN_OK) {
            return status;
        }
        if (!source(ctx, firn_block_data(one->block), (size_t)one->n_bytes)) {
            return firni_fail(err, FIRN_ERR_CORRUPT, "the session ends within its state");
        }
        put_image(expected, one, firni_checksum_of(firn_block_data(one->block), (size_t)one->n_bytes));
        if (memcmp(at, expected, sizeof expected) != 0) {
            return firni_fail(err, FIRN_ERR_CORRUPT, "the state of layer %u in the session is damaged", one->layer);
        }
    }
    return FIRN_OK;
}

/* One serial cache per layer from the images, which are in order. */
static firn_status adopt(const image_list *images, uint32_t n_tokens, firn_cache **caches, uint32_t n_layers,
                         const firn_env *env, firn_error *err)
{
    firn_block **blocks = firni_calloc(env, (size_t)blocks_of(n_tokens) + 1, sizeof(firn_block *));
    firn_status status =
        blocks != NULL ? FIRN_OK : firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a session's rows");
    uint32_t at = 0;
    for (uint32_t layer = 0; layer < n_layers && status == FIRN_OK; layer++) {
        firn_row_view view = { .blocks = blocks, .n_tokens = n_tokens };
        view.first_block = firn_cache_block_bytes(caches[layer]) > 0 ? first_block_of(caches[layer], n_tokens) : 0;
        for (; at < images->n && images->list[at].layer == layer; at++) {
            if (images->list[at].index == STATE_INDEX) {
                view.fixed = images->list[at].block;
            } else {
                blocks[view.n_blocks++] = images->list[at].block;
            }
        }
        status = firn_cache_adopt_row(caches[layer], &view, err);
    }
    firni_free(env, blocks);
    return status;
}

static firn_status make_caches(const firn_schema *schema, firn_pool *pool, const firn_env *env, firn_restored *out,
                               firn_error *err)
{
    out->caches = firni_calloc(env, schema->n_layers, sizeof(firn_cache *));
    if (out->caches == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a session of %u layers", schema->n_layers);
    }
    for (out->n_caches = 0; out->n_caches < schema->n_layers; out->n_caches++) {
        const firn_status status =
            firn_cache_create(&schema->layers[out->n_caches], pool, env, &out->caches[out->n_caches], err);
        if (status != FIRN_OK) {
            return status;
        }
    }
    return FIRN_OK;
}

/* With the head: everything behind it. */
static firn_status read_state(const firn_schema *schema, firn_pool *pool, const uint8_t *head, const head_facts *facts,
                              firn_session_source source, void *ctx, const firn_env *env, firn_restored *out,
                              firn_error *err)
{
    firn_status status = make_caches(schema, pool, env, out, err);
    if (status != FIRN_OK) {
        return status;
    }
    image_list images;
    out->tokens = firni_calloc(env, facts->n_tokens, sizeof *out->tokens);
    if (!list_images((const firn_cache *const *)out->caches, schema->n_layers, facts->n_tokens, env, &images) ||
        out->tokens == NULL) {
        firni_free(env, images.list);
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a session of %u tokens", facts->n_tokens);
    }
    const uint8_t *at = head + FIXED_BYTES + facts->n_id + facts->n_text;
    for (uint32_t i = 0; i < facts->n_tokens; i++, at += 4) {
        out->tokens[i] = firni_get_u32(at);
    }
    out->n_tokens = facts->n_tokens;
    status = images.n == facts->n_images ? read_images(at, pool, source, ctx, &images, err)
                                         : firni_fail(err, FIRN_ERR_CORRUPT, "the head of the session is damaged");
    if (status == FIRN_OK) {
        status = adopt(&images, facts->n_tokens, out->caches, schema->n_layers, env, err);
    }
    for (uint32_t i = 0; i < images.n; i++) {
        firn_block_release(images.list[i].block);
    }
    firni_free(env, images.list);
    return status;
}

firn_status firn_session_read(const firn_schema *schema, firn_pool *pool, firn_session_source source, void *ctx,
                              const firn_env *env, firn_restored *out, char id[FIRN_SESSION_ID_BYTES_MAX + 1],
                              firn_error *err)
{
    *out = (firn_restored){ .env = env };
    uint8_t *head = NULL;
    head_facts facts;
    firn_status status = read_head(source, ctx, env, &head, &facts, err);
    if (status == FIRN_OK) {
        status = check_identity(schema, head, &facts, env, err);
    }
    if (status == FIRN_OK) {
        status = read_state(schema, pool, head, &facts, source, ctx, env, out, err);
    }
    if (status == FIRN_OK && id != NULL) {
        memcpy(id, head + FIXED_BYTES, facts.n_id);
        id[facts.n_id] = '\0';
    }
    if (status != FIRN_OK) {
        firn_restored_deinit(out);
    }
    firni_free(env, head);
    return status;
}
