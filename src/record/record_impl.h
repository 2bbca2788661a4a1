/*
 * record: the stored form of state, the same bytes for every tier.
 *
 * A record holds up to 64 tokens over all layers (a *block* when full, a *tail* when not), the fixed-size states of
 * one exact token count (a *checkpoint*), or its attachments (an *object*). It is self-describing and self-checking:
 * header, then images.
 *
 *      +-------------------+------------+-- ... --+------------+-- ... --+
 *      | header, n x 4 KiB | full layer |         | window l.  |         |     block, tail
 *      +-------------------+------------+-- ... --+------------+-- ... --+
 *      | header, n x 4 KiB | state      |         |                           checkpoint: layers with one, in order
 *      +-------------------+------------+-- ... --+
 *
 * Every part begins at a multiple of 4 KiB. A layer's image is the memory of its block as it lies, so a read goes
 * straight into a block and a write comes straight from one. The planes of a layer are sections inside its image; bytes
 * of an image that no section covers mean nothing and are zeroed after a read.
 *
 * Window layers come last, the longest windows first, so that a restore that ends far behind a block reads only what
 * lies before them; and a record may lack some of the last, or all, because a row has let its old blocks go (a *bare*
 * record). Without layers that have token blocks a block is its header: the chain of tokens that checkpoints lie on.
 *
 * Header, all numbers little-endian:
 *
 *      offset  bytes
 *           0      8   magic 89 46 49 52 4e 0d 0a 1a  ("\x89FIRN\r\n\x1a")
 *           8     16   XXH3-128 of bytes [24, header_bytes): low 64 bits, high 64 bits
 *          24      4   version: 1
 *          28      1   kind: 1 block, 2 tail, 3 checkpoint, 4 object
 *          29      2   zero
 *          31      1   priority: signed, -100 to 100, of the store that wrote it
 *          32      4   header_bytes: multiple of 4,096
 *          36      4   n_sections
 *          40      8   record_bytes: header and images, multiple of 4,096
 *          48      8   created: nanoseconds since 1970
 *          56      4   first_token: position of the first token, multiple of 64
 *          60      4   n_tokens: block 64, tail 1..63, checkpoint 1..64, object 0..63
 *          64     32   identity digest
 *          96     32   namespace digest
 *         128     32   parent: digest of the chain of all tokens before first_token
 *         160     32   own digest: firni_chain_record(kind, parent, tokens)
 *         192    256   tokens[64], unused ones zero
 *         448   64*n   section table
 *    448 + 64 n     64   annex: what an index says of the record, so that one can be made from records alone
 *         ...          names: of the records at token 0 the namespace's name and the identity's text, of those with
 *                      links the namespace's name; then the links; then zeros up to header_bytes
 *
 * Annex:
 *
 *           0     32   root: the digest that the chain begins with
 *          32      4   segment that the record was written to
 *          36      4   reusable_from: no shorter prefix can be resumed from the record's state
 *          40      8   offset in the segment
 *          48      2   full layers whose blocks the record holds
 *          50      2   window layers whose blocks it holds
 *          52      2   layers whose state it holds
 *          54      2   bytes of the namespace's name that follow: 0..255
 *          56      3   bytes of the identity's text that follow: 0..32,768
 *          59      1   links that follow, 32 bytes each: bit 0 `before`, bit 1 `under`
 *          60      4   plain_pages: 4 KiB pages of the record before it was packed; 0: it is not packed
 *
 * A *link* is a digest of the chain of a namespace above: `before` that of the record which this one continues, `under`
 * that of the parent of the record which this one lies on (docs/FORMAT.md, "Namespaces below namespaces").
 *
 * A *packed* record has the header of the plain one, and behind it its sections as codec.c stores them, one right
 * behind the other; record_bytes and the sections' offsets are those of the packed form, lengths and checksums those of
 * the plain one.
 *
 * Section:
 *
 *           0      2   kind: 1 plane, 2 attachment metadata, 3 attachment tensor, 4 state
 *           2      2   layer (of an attachment: its index)
 *           4      2   plane (of an attachment: the tensor's index)
 *           6      1   dtype
 *           7      1   n_dims
 *           8     16   shape[4], outermost first, unused ones zero
 *          24      8   offset from the start of the record
 *          32      8   length in bytes: product of shape times the dtype's size
 *          40     16   XXH3-128 of the section's bytes: low, high
 *          56      4   stored_bytes: what a coded section takes in the record; 0 without a codec
 *          60      1   codec: 0 none, 1 zstd, 2 zstd of byte planes
 *          61      3   zero
 */
#ifndef FIRNI_RECORD_IMPL_H
#define FIRNI_RECORD_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "firn/identity.h"
#include "firn/tier.h"
#include "record/crypt_impl.h"

#define FIRNI_RECORD_VERSION          1u
#define FIRNI_RECORD_SEALED           0x10000u          /* in the version: the record is encrypted (record_seal.c) */
#define FIRNI_RECORD_ALIGN            4096u
#define FIRNI_RECORD_FIXED_BYTES      448u
#define FIRNI_SECTION_BYTES           64u
#define FIRNI_RECORD_ANNEX_BYTES      64u
#define FIRNI_RECORD_TEXT_BYTES_MAX   32768u            /* of an identity's text; what is longer is cut */
#define FIRNI_RECORD_SECTIONS_MAX     15808u            /* what a header of the largest size holds */
#define FIRNI_RECORD_HEADER_BYTES_MAX (1024u * 1024u)
#define FIRNI_RECORD_BYTES_MAX        (UINT64_C(1) << 36)

/* Persisted: append, never renumber. */
typedef enum firni_record_kind {
    FIRNI_RECORD_BLOCK = 1,
    FIRNI_RECORD_TAIL = 2,
    FIRNI_RECORD_CHECKPOINT = 3,
    FIRNI_RECORD_OBJECT = 4
} firni_record_kind;

typedef enum firni_section_kind {
    FIRNI_SECTION_PLANE = 1,
    FIRNI_SECTION_METADATA = 2,
    FIRNI_SECTION_TENSOR = 3,
    FIRNI_SECTION_STATE = 4
} firni_section_kind;

typedef struct firni_checksum {
    uint64_t low, high;
} firni_checksum;

/* How a section's bytes are stored. Persisted: append, never renumber. */
typedef enum firni_codec {
    FIRNI_CODEC_NONE = 0,
    FIRNI_CODEC_ZSTD = 1,  /* XXH3-128 of the frame, then one zstd frame with its content's size */
    FIRNI_CODEC_PLANES = 2 /* the same of the section's elements by byte: all first bytes, then all second ones ... */
} firni_codec;

typedef struct firni_section {
    firni_section_kind kind;
    uint16_t layer, plane;
    firn_dtype dtype;
    uint32_t n_dims;
    uint32_t shape[FIRN_TENSOR_DIMS_MAX];
    uint64_t offset, n_bytes; /* n_bytes and checksum: of the plain bytes */
    firni_checksum checksum;
    firni_codec codec;
    uint32_t stored_bytes;    /* 0 without a codec: then the section takes n_bytes */
} firni_section;

/* What of a namespace above a record hangs on. Zeroed: nothing. */
typedef struct firni_record_links {
    bool has_before, has_under;
    firn_digest before; /* of the record that this one continues */
    firn_digest under;  /* the parent of the record that this one lies on */
} firni_record_links;

#define FIRNI_RECORD_LINKS_BYTES_MAX (2u * FIRN_DIGEST_BYTES)

/* A header in memory. `sections` belongs to whoever made the struct. */
typedef struct firni_record {
    firni_record_kind kind;
    uint32_t header_bytes;
    uint64_t record_bytes;
    uint64_t plain_bytes; /* of a packed record: before it was; else 0 */
    uint64_t created_wall_ns;
    uint32_t first_token, n_tokens;
    firn_digest identity, ns, parent, digest, root;
    uint32_t segment;
    uint64_t offset;
    uint32_t reusable_from;
    uint16_t n_full, n_window, n_fixed;
    const char *ns_name, *text; /* without terminators; n_ns is 0 but at token 0 and with links, n_text but at token
                                 * 0 */
    uint32_t n_ns, n_text;
    firni_record_links links;
    int8_t priority;
    firn_token tokens[FIRN_BLOCK_TOKENS];
    firni_section *sections;
    uint32_t n_sections;
} firni_record;

uint32_t firni_record_links_bytes(const firni_record_links *links);
/* Size of a header with this many sections and bytes of names, links included; 0 when it would be too large. */
uint32_t firni_record_header_bytes(uint32_t n_sections, uint32_t n_names);
/* Writes the header into out[0..header_bytes). Everything in `record` is set, checksums of sections included. */
void firni_record_encode(const firni_record *record, uint8_t *out);
/* Reads a header from bytes[0..n_bytes); the record may extend to record_bytes_max bytes in its file. Every field is
 * checked before it is used; *out and sections[0..sections_max) hold the result, out->sections = sections, and its
 * names are borrowed from `bytes`. Allocates nothing. Errors: CORRUPT (damaged), FORMAT (another version or kind),
 * INVALID (more sections than sections_max). */
firn_status firni_record_decode(const uint8_t *bytes, size_t n_bytes, uint64_t record_bytes_max,
                                firni_section *sections, uint32_t sections_max, firni_record *out, firn_error *err);
/* Sizes from the fixed part alone, for a reader that has to fetch the rest of the header first; the values are
 * plausible (aligned, within the limits) but only the checksum in firni_record_decode makes them true. */
firn_status firni_record_peek(const uint8_t fixed[FIRNI_RECORD_FIXED_BYTES], uint32_t *header_bytes,
                              uint32_t *n_sections, firn_error *err);
/* The record's bytes from offset 0 are at `record_start`, all of record_bytes: compares each section's checksum. Not
 * for packed records. Returns the index of the first that fails, or n_sections. */
uint32_t firni_record_verify_sections(const firni_record *record, const uint8_t *record_start);

/* What a section takes in the record. */
uint64_t firni_section_stored(const firni_section *section);

firni_checksum firni_checksum_of(const void *bytes, size_t n_bytes);
bool firni_checksum_equal(firni_checksum a, firni_checksum b);

/* ---- chains (chain.c) -------------------------------------------------------------------------------------------- */

bool firni_digest_equal(const firn_digest *a, const firn_digest *b);
/* SHA-256 over domain and fields, each preceded by its length. */
typedef struct firni_field {
    const void *bytes;
    size_t n_bytes;
} firni_field;
firn_digest firni_digest_fields(const char *domain, const firni_field *fields, uint32_t n_fields);
firn_digest firni_namespace_digest(const char *ns); /* NULL: "" */

/* The names of a namespace and of those above it that it reads, the nearest first (namespace.c). */
typedef struct firni_levels {
    uint32_t n;                                                      /* 1 for a namespace without a parent */
    char names[FIRN_NAMESPACE_LEVELS_MAX][FIRN_NAMESPACE_BYTES_MAX + 1];
} firni_levels;

void firni_levels_of(const char *ns, firni_levels *out); /* ns: at most FIRN_NAMESPACE_BYTES_MAX bytes; NULL: "" */
/* Root of the chain that objects with this key hang on, apart from all chains of tokens. */
firn_digest firni_object_root(const firn_digest *identity, const char *ns, const char *key);
/* Digest of the object bound to the chain `parent` followed by these tokens. */
firn_digest firni_chain_object(const firn_digest *parent, const firn_token *tokens, uint32_t n_tokens);
/* Of a record of any kind: firn_chain_extend() for blocks and tails. */
firn_digest firni_chain_record(firni_record_kind kind, const firn_digest *parent, const firn_token *tokens,
                               uint32_t n_tokens);

/* ---- packed sections (codec.c) ----------------------------------------------------------------------------------- */

/* Memory and state of packing and unpacking, for one thread at a time. */
typedef struct firni_coder firni_coder;

firni_coder *firni_coder_create(const firn_env *env); /* NULL without memory */
void firni_coder_destroy(firni_coder *coder);         /* accepts NULL */
/* Packs the section's plain bytes into out[0..n_bytes), in whichever way is smallest, and sets its codec and
 * stored_bytes; what does not shrink is copied. Errors: NO_MEMORY. */
firn_status firni_section_pack(firni_coder *coder, firni_section *section, const uint8_t *bytes, uint8_t *out);
/* Unpacks what the section stored, all of it at `stored`, into out[0..n_bytes). The stored bytes are verified before
 * they are decoded, their size and that of what is in them before anything is allocated; the section's own checksum is
 * the caller's to compare. Errors: CORRUPT, NO_MEMORY. */
firn_status firni_section_unpack(firni_coder *coder, const firni_section *section, const uint8_t *stored, uint8_t *out);
/* Packs a decoded plain record whose bytes from offset 0 are at `bytes` and have been verified. `sections`, n_sections
 * of them, become those of *out, which is complete but for its place; out_bytes has room for the plain record, and gets
 * the sections but no header. The bytes behind them, up to a multiple of 4 KiB, are zeroed. Errors: NO_MEMORY. */
firn_status firni_record_pack(firni_coder *coder, const firni_record *record, const uint8_t *bytes,
                              firni_section *sections, uint8_t *out_bytes, firni_record *out);
/* Whether every section of a record, packed or not, is what its checksums say. Errors: CORRUPT, NO_MEMORY. */
firn_status firni_record_verify(firni_coder *coder, const firni_record *record, const uint8_t *record_start);

/* ---- plans (plan.c) ---------------------------------------------------------------------------------------------- */

/* What a record of one form is made of: its images in the order in which they lie, and its section table, which is the
 * same in each record but for the checksums. */
typedef struct firni_plan_image {
    uint32_t layer;
    size_t n_bytes;        /* of the block in memory */
    uint64_t offset;       /* in the record */
    uint32_t first_section, n_sections;
} firni_plan_image;

typedef struct firni_plan_form {
    firni_plan_image *images;
    uint32_t n_images;
    firni_section *sections;
    uint32_t n_sections;
    uint32_t header_bytes;
    uint64_t record_bytes;
    bool is_checkpoint;
} firni_plan_form;

/* Window layers by kind, as firni_families numbers them: longest window first. */
typedef struct firni_plan_kinds {
    const uint32_t *of_layer; /* per layer; read for window layers only */
    uint32_t n;
} firni_plan_kinds;

/* How the records of one schema look. A block or tail has the form blocks[k] when it holds the window layers of the
 * first k kinds. */
typedef struct firni_plan {
    const firn_env *env;
    const firn_schema *schema;
    uint32_t n_layers;
    uint32_t n_full, n_fixed;  /* layers; one with blocks and a state counts twice */
    uint32_t n_kinds;
    uint32_t *n_window;        /* [n_kinds + 1]: window layers of the first k kinds */
    uint32_t *families;        /* per layer: firni_family_of() */
    char **describe;           /* per layer: firn_cache_describe() of a cache that fits */
    firni_plan_form *blocks;   /* [n_kinds + 1] */
    firni_plan_form checkpoint;
} firni_plan;

/* `layers`: one cache of each layer of the schema, borrowed for the call like `kinds`. The schema outlives the plan.
 * Errors: INVALID (a block that is no multiple of 4 KiB, too many sections), NO_MEMORY. */
firn_status firni_plan_init(const firn_schema *schema, const firn_cache *const *layers, firni_plan_kinds kinds,
                            const firn_env *env, firni_plan *out, firn_error *err);
void firni_plan_deinit(firni_plan *plan); /* accepts a zeroed plan */
/* The number of kinds that a record with so many window layers holds. */
uint32_t firni_plan_kinds_held(const firni_plan *plan, uint32_t n_window);
/* The images that hold the full layers and the window layers of the first n kinds: the first ones of a block. */
uint32_t firni_plan_images(const firni_plan *plan, uint32_t n_kinds);
/* Bytes of the header, without names, and the first n images. */
uint64_t firni_form_bytes(const firni_plan_form *form, uint32_t n_images);
/* By how much the header of a record of this form is larger when it also holds n bytes of names, and when the record
 * takes so many bytes (UINT32_MAX: no record of this form does). Images and sections lie that much further back. */
uint32_t firni_form_names_bytes(const firni_plan_form *form, uint32_t n_names);
uint32_t firni_form_surplus(const firni_plan_form *form, uint64_t record_bytes);
/* Whether a decoded header has exactly the sections of the form; of a packed record they may lie anywhere. */
bool firni_form_matches(const firni_plan_form *form, const firni_record *record);
/* Fills the checksums of one image's sections from its bytes. `sections` is a whole record's. */
void firni_form_checksum(const firni_plan_form *form, uint32_t image, const uint8_t *bytes, firni_section *sections);
/* Compares them, and zeroes what no section covers. False: some section differs. */
bool firni_form_verify(const firni_plan_form *form, uint32_t image, uint8_t *bytes, const firni_section *sections);

/* ---- encrypted records (record_seal.c) --------------------------------------------------------------------------- */

/* What one record is written with; drawn anew for each. */
typedef struct firni_record_seal {
    uint8_t salt[FIRNI_CRYPT_SALT_BYTES];
    firni_crypt_key key;
} firni_record_seal;

bool firni_record_is_sealed(const uint8_t fixed[FIRNI_RECORD_FIXED_BYTES]);
/* Whether a record is one of this store: sealed with this key or, without one (crypt NULL), plain. */
bool firni_record_is_of_key(const uint8_t fixed[FIRNI_RECORD_FIXED_BYTES], const firni_crypt *crypt);
/* Errors of these: NO_MEMORY, IO (no random numbers). Keys are to be wiped with firni_crypt_forget. */
firn_status firni_record_seal_begin(const firni_crypt *crypt, firni_record_seal *seal);
/* Seals an encoded header in place. */
firn_status firni_record_seal_header(const firni_crypt *crypt, const firni_record_seal *seal, uint8_t *header);
/* Seals one section; the tag takes the place of its checksum. in and out may be the same. */
firn_status firni_record_seal_section(const firni_crypt *crypt, const firni_crypt_key *key, uint32_t index,
                                      const uint8_t *in, size_t n_bytes, uint8_t *out, firni_checksum *tag);
firn_status firni_record_open_section(const firni_crypt *crypt, const firni_crypt_key *key, uint32_t index,
                                      uint8_t *bytes, size_t n_bytes, firni_checksum tag);
/* All sections of a record in memory, in place. */
firn_status firni_record_seal_sections(const firni_crypt *crypt, const firni_crypt_key *key, uint32_t n_sections,
                                       firni_section *sections, uint8_t *record_start);
/* The next four read what may be sealed, with crypt NULL what must be plain. They open in place; after CORRUPT or
 * NO_MEMORY the bytes are of no use. */
firn_status firni_record_open_header(const firni_crypt *crypt, uint8_t *header, size_t n_bytes, firni_crypt_key *key);
firn_status firni_record_open_sections(const firni_crypt *crypt, const firni_crypt_key *key,
                                       const firni_record *record, uint8_t *record_start);
/* The same of a record that may be packed. What is encrypted is verified as it is stored, and not unpacked. */
firn_status firni_record_open_packed(firni_coder *coder, const firni_crypt *crypt, const firni_crypt_key *key,
                                     const firni_record *record, uint8_t *record_start);
firn_status firni_form_open(const firni_plan_form *form, uint32_t image, const firni_crypt *crypt,
                            const firni_crypt_key *key, uint8_t *bytes, const firni_section *sections);
/* Zeroes what no section covers of an image in memory. */
void firni_form_zero_gaps(const firni_plan_form *form, uint32_t image, uint8_t *bytes);
/* Seals an image into out, as large as it is, and fills in the tags of its sections. */
firn_status firni_form_seal(const firni_plan_form *form, uint32_t image, const firni_crypt *crypt,
                            const firni_crypt_key *key, const uint8_t *bytes, uint8_t *out, firni_section *sections);

/* ---- attachments (attachment.c) ---------------------------------------------------------------------------------- */

/* The sections and payload of an object record. `payload` is what follows the header: record_bytes - header_bytes. */
firn_status firni_attachments_check(const firn_attachment *attachments, uint32_t n_attachments, firn_error *err);
/* Number of sections, and the header's and record's size. Call after a successful check. n_names: bytes of names that
 * the header holds. */
uint32_t firni_attachments_layout(const firn_attachment *attachments, uint32_t n_attachments, uint32_t n_names,
                                  firni_section *sections, uint32_t *header_bytes, uint64_t *record_bytes);
/* Writes the payload (zeroed by the callee) and the checksums of `sections`. */
void firni_attachments_encode(const firn_attachment *attachments, uint32_t n_attachments, uint32_t header_bytes,
                              uint64_t record_bytes, firni_section *sections, uint8_t *payload);
/* Makes attachments from a decoded object header and its verified payload; the array and all it points to belong to the
 * caller (firni_attachments_free). Errors: CORRUPT, NO_MEMORY. */
firn_status firni_attachments_decode(const firni_record *record, const uint8_t *payload, const firn_env *env,
                                     firn_attachment **out, uint32_t *n_out, firn_error *err);
void firni_attachments_free(const firn_env *env, firn_attachment *attachments, uint32_t n_attachments);

#define FIRNI_ATTACHMENTS_MAX          16u
#define FIRNI_ATTACHMENT_TENSORS_MAX   16u
#define FIRNI_ATTACHMENT_METADATA_MAX  65536u
#define FIRNI_ATTACHMENT_SCHEMA_MAX    63u
#define FIRNI_ATTACHMENT_SECTIONS_MAX  (FIRNI_ATTACHMENTS_MAX * (1u + FIRNI_ATTACHMENT_TENSORS_MAX))

#endif
