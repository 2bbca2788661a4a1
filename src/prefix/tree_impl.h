/*
 * The token tree: nodes, their children, what each may be used for, and who may leave.
 *
 *      root "alice" -- [64] -- [64] -- [64] -- [17]         one root per namespace, made on first use
 *                         \        \-- [40]                 only leaves hold less than 64 tokens
 *                          \-- [64]
 *
 * A node covers tokens [first_token, first_token + n_tokens) of every sequence that passes through it, and holds one
 * block with their state per layer that has token blocks. Positions are multiples of 64, so a node is exactly one block
 * per layer. The block of a window layer may be missing: the row had let go of it, or the tree has, under pressure.
 * Layers with a fixed-size state have checkpoints instead: the state of all of them after an exact count of tokens,
 * kept by the node that holds the last of these tokens.
 *
 * Children are sorted by their tokens, and no child's tokens begin with all of another's: a tail that grows replaces
 * the shorter one. Both facts make a lookup one binary search. A sibling that shares the longest beginning with a
 * sequence stands next to the place where the sequence itself would be, so two comparisons find it; and tokens are
 * compared at each step, there is no hash to collide or to attack.
 *
 * Recency is a stamp. Touching a path stamps the deepest node first and the root's child last, so a parent is always
 * newer than its children and the oldest node of the tree is always a leaf.
 *
 * Nodes that may leave stand in a heap of leaves that are neither pinned nor unsaved; unsaved leaves stand in another,
 * for storing them early under pressure. Inner nodes whose window blocks nobody needs stand in a third (windows.c). The
 * heaps have room for every node before the node is linked, so that nothing that moves a node between them can fail.
 * The engine thread alone touches anything here.
 */
#ifndef FIRNI_TREE_IMPL_H
#define FIRNI_TREE_IMPL_H

#include "firn/prefix.h"
#include "tier/usable_impl.h"

typedef struct firni_node firni_node;

/* Lists that a node can be in, each at most once. */
typedef enum firni_list_id {
    FIRNI_LIST_UNSAVED, /* all unsaved nodes, oldest mark first */
    FIRNI_LIST_WAITING, /* stores that are wanted and not queued yet, first come first served */
    FIRNI_LISTS
} firni_list_id;

/* A node's neighbours in a list; of the list itself: its last and first node. */
typedef struct firni_link {
    firni_node *prev, *next;
} firni_link;

/* The states of all layers that keep a fixed-size one, after exactly n_tokens tokens. */
typedef struct firni_checkpoint {
    struct firni_checkpoint *next; /* of the same node: a shorter one */
    uint32_t n_tokens;             /* from the first token on; the last of them is in the node */
    bool unsaved;                  /* there is a tier, and it does not hold this checkpoint */
    bool has_logits;               /* last logits are kept that belong to it: it stays */
    uint32_t n_pins;               /* pins by name that end here: the retention rule leaves it alone */
    firn_block *states[];          /* one per layer, each one reference; NULL for layers without */
} firni_checkpoint;

struct firni_node {
    firni_node *parent;      /* NULL for a root */
    firni_node **children;   /* sorted by tokens */
    uint32_t n_children;
    uint32_t n_children_max;
    firni_node *only_child;  /* storage of `children` while there is room for one: chains allocate nothing more */
    char *ns;                /* a root's namespace; NULL for other nodes */

    uint32_t first_token;    /* position of tokens[0]: a multiple of 64 */
    uint32_t n_tokens;       /* 1..64; 0 for a root; less than 64 only without children */
    uint32_t n_pins;         /* leases, stores in progress, an insertion under way */
    uint32_t reusable_from;  /* no prefix shorter than this can be resumed from this node's state */
    bool cut_anywhere;       /* the state can be cut after any token */
    bool boundary;           /* a row was published that ended exactly at the node's end */
    bool unsaved;            /* dirty: there is a tier, and it does not hold all of this node */
    bool blocks_unsaved;     /* the token blocks among it; else only checkpoints */
    bool stuck;              /* unsaved, or has a stuck child: it may not leave until that is stored */
    uint32_t n_stuck_children;
    uint64_t stuck_bytes;    /* its part of firn_prefix.stuck_bytes */
    bool windows_saved;      /* the tier holds the blocks of all window layers as well */
    bool storing;            /* a store of the path that ends here is queued or running */
    bool store_again;        /* its tail grew meanwhile: store once more */
    bool waiting;            /* in FIRNI_LIST_WAITING */
    int8_t priority;         /* the highest of those who put it: lower ones leave first */
    bool ram_only;           /* there is a tier, and it is not to hold this node, nor counted on to */
    uint32_t n_standing;     /* pins by name that end here or below */
    bool speculative;        /* came from a read that nobody waited for, and was not used since */
    uint32_t window_holds;   /* who needs the window blocks: ends of paths and branches, leases, an insertion */
    uint32_t window_end;     /* as an end or a branch the node holds the window before this count; 0: it is neither */
    firni_checkpoint *checkpoints; /* longest first */
    uint64_t flush_mark;     /* number of the flush in which a store of it was refused */
    uint64_t unsaved_since;  /* number of the last flush that had begun before it became unsaved */
    uint64_t child_mark;     /* number of the flush that saw an unsaved child */

    uint64_t used;           /* recency stamp */
    uint64_t clock;          /* the policy's clock at that use */
    uint64_t rank;           /* of a leaf that may leave, by a policy that ranks: smaller leaves first */
    struct firni_heap *heap; /* where it waits, or NULL */
    size_t heap_index;
    firni_node *aside;       /* list of candidates that an eviction passed over */
    firni_link links[FIRNI_LISTS];

    firn_token tokens[FIRN_BLOCK_TOKENS];
    firn_block *blocks[];    /* one per layer, each one reference; NULL where there is none; no array for a root */
};

/* ---- node.c: nodes and their children ---- */

/* A node without tokens. NULL without memory. */
firni_node *firni_node_create(const firn_env *env, uint32_t n_layers);
/* Frees the node itself; it holds no blocks any more and is not linked. */
void firni_node_destroy(const firn_env *env, firni_node *node);

/* Where tokens[0..n) belongs among the children. */
typedef struct firni_place {
    uint32_t index;     /* where it would be inserted */
    firni_node *best;   /* the child that shares the longest beginning with it; NULL without children */
    uint32_t n_common;  /* length of that beginning */
} firni_place;

firni_place firni_node_place(const firni_node *parent, const firn_token *tokens, uint32_t n_tokens);
/* Room for one more child. False without memory; the node is unchanged then. */
bool firni_node_reserve_child(const firn_env *env, firni_node *parent);
void firni_node_link(firni_node *parent, firni_node *child, uint32_t index); /* after reserve_child */
void firni_node_unlink(firni_node *child);
uint32_t firni_tokens_common(const firn_token *a, const firn_token *b, uint32_t n_max);

/* ---- match.c ---- */

/* How far a sequence goes along the tree. */
typedef struct firni_match {
    firni_node *node;        /* deepest node with a matched token; NULL when there is none */
    uint32_t n_matched;      /* tokens that are equal */
    bool diverged;           /* the stored side has another token there; false: it ends, or the sequence does */
    firn_token stored_token;
} firni_match;

firni_match firni_match_tokens(firni_node *root, const firn_token *tokens, uint32_t n_tokens);
/* ---- victims.c, policy_lru.c, policy_cost.c ---- */

/* What a policy that ranks may know of something that could leave. */
typedef struct firni_use {
    uint64_t clock;        /* the policy's clock at the last use: the rank of the victim before it */
    uint32_t first_token;  /* what is computed again if it goes: tokens [first_token, first_token + n_tokens) */
    uint32_t n_tokens;
    uint64_t bytes;        /* that its leaving gives back */
    uint64_t unit_bytes;   /* of a whole block of all layers: makes ranks of different models alike */
} firni_use;

/* Decides who leaves first. Only leaves and window blocks are ever asked about, so no policy can make an orphan; what
 * is pinned or unsaved is in no heap that it orders, so none can break a promise. `firn cache replay` runs the same
 * tables on the same heap. */
typedef struct firni_policy {
    const char *name;
    bool (*leaves_before)(const firni_node *a, const firni_node *b);
    uint64_t (*rank)(const firni_use *use); /* fills firni_node.rank; NULL: the order needs none */
} firni_policy;

/* lru and shed go by recency; shed, among window blocks, takes those that the tier holds first. */
extern const firni_policy firni_policy_lru, firni_policy_cost, firni_policy_shed;

/* By name: "lru" or "cost"; NULL is "lru". NULL when there is none of this name. */
const firni_policy *firni_policy_find(const char *name);

/* A binary heap of nodes, first to leave on top. A node knows its place, so it can be taken from anywhere. */
typedef struct firni_heap {
    const firni_policy *policy;
    bool by_priority;        /* lower priorities first, whatever the policy says; the policy within one */
    firni_node **nodes;
    size_t n_nodes;
    size_t n_nodes_max;
} firni_heap;

bool firni_heap_reserve(const firn_env *env, firni_heap *heap, size_t n_nodes_max);
void firni_heap_deinit(const firn_env *env, firni_heap *heap);
void firni_heap_add(firni_heap *heap, firni_node *node);   /* never fails: reserved before */
void firni_heap_remove(firni_node *node);                  /* from the heap it is in */
void firni_heap_moved(firni_node *node);                   /* its rank changed */
firni_node *firni_heap_first(const firni_heap *heap);      /* NULL when empty */
void firni_heap_check(const firni_heap *heap);

/* ---- blockset.c ---- */

/* The blocks that nodes refer to, each with the number of nodes: what counting each block once takes. Two nodes share a
 * block when the same row was put into two namespaces. Open addressing with linear probing (Knuth, The Art of Computer
 * Programming 6.4, algorithms L and R). */
typedef struct firni_blockset_slot {
    firn_block *block;
    uint32_t n_refs;
} firni_blockset_slot;

typedef struct firni_blockset {
    firni_blockset_slot *slots;
    size_t n_slots;   /* a power of two, or 0 */
    size_t n_blocks;
    uint64_t held_bytes;
} firni_blockset;

bool firni_blockset_reserve(const firn_env *env, firni_blockset *set, size_t n_more);
void firni_blockset_deinit(const firn_env *env, firni_blockset *set);
void firni_blockset_add(firni_blockset *set, firn_block *block);    /* never fails: reserved before */
void firni_blockset_remove(firni_blockset *set, firn_block *block); /* one of its references */
uint32_t firni_blockset_refs(const firni_blockset *set, const firn_block *block);

#endif
