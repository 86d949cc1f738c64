/* kv/prefix_order.c - the children of a node in the order of their ids, and where nodes and marks come from.
 *
 * Children are a treap through the nodes themselves, and items come from pools that were grown when a sequence was leased, so that the
 * rows of a step never ask for memory.
 *
 * Invariants: 1. left to right the children ascend by their ids; a node weighs no more than the one above it.
 *             2. ready >= promised: what sequences were promised and have not taken is there, what they may make again apart. */
#include "kv/prefix_int.h"

#include "base/mem.h"

/* ---- order ---- */

static bool run_before(const struct prefix_node *n, const uint32_t *ids, uint32_t count)
{
    uint32_t c = prefix_common(n->ids, n->count, ids, count);
    return c < count && (c == n->count || n->ids[c] < ids[c]);
}

struct prefix_node *prefix_lower(const struct prefix_node *parent, const uint32_t *ids, uint32_t count)
{
    struct prefix_node *lowest = NULL;
    for (struct prefix_node *n = parent->top; n != NULL;) {
        bool before = run_before(n, ids, count);
        lowest = before ? lowest : n;
        n = before ? n->right : n->left;
    }
    return lowest;
}

struct prefix_node *prefix_child_first(const struct prefix_node *parent)
{
    struct prefix_node *n = parent->top;
    while (n != NULL && n->left != NULL) {
        n = n->left;
    }
    return n;
}

struct prefix_node *prefix_child_last(const struct prefix_node *parent)
{
    struct prefix_node *n = parent->top;
    while (n != NULL && n->right != NULL) {
        n = n->right;
    }
    return n;
}

struct prefix_node *prefix_child_next(const struct prefix_node *n)
{
    struct prefix_node *next = n->right;
    if (next != NULL) {
        while (next->left != NULL) {
            next = next->left;
        }
        return next;
    }
    for (next = n->above; next != NULL && next->right == n; next = next->above) {
        n = next;
    }
    return next;
}

struct prefix_node *prefix_child_before(const struct prefix_node *n)
{
    struct prefix_node *before = n->left;
    if (before != NULL) {
        while (before->right != NULL) {
            before = before->right;
        }
        return before;
    }
    for (before = n->above; before != NULL && before->left == n; before = before->above) {
        n = before;
    }
    return before;
}

static struct prefix_node **place_of(struct prefix_node *parent, const struct prefix_node *n)
{
    struct prefix_node *above = n->above;
    return above == NULL ? &parent->top : above->left == n ? &above->left : &above->right;
}

static void rotate_up(struct prefix_node *parent, struct prefix_node *n)
{
    struct prefix_node *down = n->above, *inner = down->left == n ? n->right : n->left;
    *place_of(parent, down) = n;
    if (down->left == n) {
        down->left = inner;
        n->right = down;
    } else {
        down->right = inner;
        n->left = down;
    }
    if (inner != NULL) {
        inner->above = down;
    }
    n->above = down->above;
    down->above = n;
}

static uint64_t weight_of(uint64_t number)
{
    number = (number ^ number >> 30) * 0xbf58476d1ce4e5b9u;
    number = (number ^ number >> 27) * 0x94d049bb133111ebu;
    return number ^ number >> 31;
}

void prefix_child_insert(struct kv *kv, struct prefix_node *parent, struct prefix_node *n)
{
    struct prefix_node **at = &parent->top, *above = NULL;
    while (*at != NULL) {
        above = *at;
        at = run_before(above, n->ids, n->count) ? &above->right : &above->left;
    }
    *at = n;
    n->above = above;
    n->weight = weight_of(++kv->prefix->inserted * 0x9e3779b97f4a7c15u);
    while (n->above != NULL && n->above->weight < n->weight) {
        rotate_up(parent, n);
    }
    parent->child_count++;
}

void prefix_child_remove(struct prefix_node *parent, struct prefix_node *n)
{
    while (n->left != NULL || n->right != NULL) {
        bool left = n->right == NULL || (n->left != NULL && n->left->weight > n->right->weight);
        rotate_up(parent, left ? n->left : n->right);
    }
    *place_of(parent, n) = NULL;
    n->above = NULL;
    parent->child_count--;
}

/* ---- pools ---- */

enum { BLOCK_ITEMS_LEAST = 64 };

/* items that were never used are not touched: a promise costs memory when it is taken */
struct prefix_block {
    struct prefix_block *next, *next_open;
    uint32_t used, count;
    _Alignas(16) unsigned char items[];
};

static int pool_grow(struct prefix_pool *p, uint32_t count)
{
    uint32_t items = count < BLOCK_ITEMS_LEAST ? BLOCK_ITEMS_LEAST : count;
    struct prefix_block *b = mem_try(sizeof *b + (size_t)items * p->item_bytes);
    if (b == NULL) {
        return ERR_NOMEM;
    }
    *b = (struct prefix_block){.next = p->blocks, .next_open = p->open, .count = items};
    p->blocks = p->open = b;
    p->ready += items;
    return 0;
}

int prefix_pool_promise(struct prefix_pool *p, uint32_t count, uint32_t *promise)
{
    uint64_t need = (uint64_t)p->promised + count;
    if (need >= KV_NONE || (need > p->ready && pool_grow(p, (uint32_t)need - p->ready) != 0)) {
        return ERR_NOMEM;
    }
    p->promised += count;
    *promise += count;
    return 0;
}

void prefix_pool_forgive(struct prefix_pool *p, uint32_t *promise)
{
    p->promised -= *promise;
    *promise = 0;
}

void *prefix_pool_take(struct prefix_pool *p, uint32_t *promise)
{
    bool mine = promise != NULL && *promise != 0;
    uint32_t need = mine ? 1 : p->promised + 1;
    if (p->ready < need && pool_grow(p, need - p->ready) != 0) {
        return NULL;
    }
    if (mine) {
        --*promise;
        p->promised--;
    }
    void *item = p->free;
    if (item != NULL) {
        memcpy(&p->free, item, sizeof p->free);
    } else {
        while (p->open->used == p->open->count) {
            p->open = p->open->next_open;
        }
        item = p->open->items + (size_t)p->open->used++ * p->item_bytes;
    }
    p->ready--;
    return memset(item, 0, p->item_bytes);
}

void prefix_pool_give(struct prefix_pool *p, void *item)
{
    memcpy(item, &p->free, sizeof p->free);
    p->free = item;
    p->ready++;
}

void prefix_pool_close(struct prefix_pool *p)
{
    while (p->blocks != NULL) {
        struct prefix_block *b = p->blocks;
        p->blocks = b->next;
        mem_free(b);
    }
    *p = (struct prefix_pool){0};
}
