/* kv/prefix.c - finding the longest usable prefix, and leasing it.
 *
 * Finding walks down from the key's root, whole pages first, then into the child with most ids in common.  On the way it knows for each
 * group that forgets since which page the tree has all its pages (`runs`), so at every node it knows whether a row could go on there.
 * Running sequences of the same key are looked at too: their last page is not in the tree yet.
 * With a kv_start a key has two roots: late pages serve positions from the start on, early ones those before it. */
#include "kv/prefix_int.h"

#include "base/mem.h"

enum { MARK_EVERY_LEAST = 1024, NODES_LEAST = 1024, NODE_SHARE = 8192 }; /* nodes: at most one per so many bytes of the budget */

/* ---- open and close ---- */

static void ring_open(struct prefix_link *head)
{
    head->prev = head->next = head;
}

int prefix_open(struct kv *kv, bool off, uint32_t mark_every, struct err *err)
{
    struct prefix *px = kv->prefix = mem_try_zero(1, sizeof *px);
    if (px == NULL) {
        return err_nomem(err, "prefix tree", sizeof *px);
    }
    ring_open(&px->leaves);
    ring_open(&px->soft);
    ring_open(&px->marks);
    ring_open(&px->extras);
    ring_open(&px->spares);
    px->off = off;
    px->node_pool.item_bytes = (sizeof(struct prefix_node) + kv->layout.group_count * sizeof(struct prefix_page) + 7) / 8 * 8;
    px->mark_pool.item_bytes = (sizeof(struct prefix_mark) + kv->layout.group_count * sizeof(uint32_t) + 7) / 8 * 8;
    uint64_t most = (uint64_t)kv->slab_count * KV_SLAB / NODE_SHARE;
    px->node_max = most < NODES_LEAST ? NODES_LEAST : most < KV_NONE ? (uint32_t)most : KV_NONE;
    px->runs = mem_try_zero(kv->layout.group_count, sizeof *px->runs);
    if (px->runs == NULL) {
        return err_nomem(err, "prefix tree", kv->layout.group_count * sizeof *px->runs);
    }
    uint32_t widest = 0;
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        uint32_t window = kv->layout.groups[g].window;
        px->windows |= prefix_policy(kv, g, KV_WINDOW);
        px->recurrent |= prefix_policy(kv, g, KV_RECURRENT);
        widest = window > widest ? window : widest;
    }
    uint64_t every = 4ull * widest > MARK_EVERY_LEAST ? 4ull * widest : MARK_EVERY_LEAST;
    px->mark_every = mark_every != 0 ? mark_every : every < KV_NONE ? (uint32_t)every : KV_NONE;
    return 0;
}

/* Sequences are freed before, so everything can be evicted. */
void prefix_close(struct kv *kv)
{
    if (kv->prefix == NULL) {
        return;
    }
    if (kv->prefix->runs != NULL) {
        kv_prefix_clear(kv);
    }
    prefix_pool_close(&kv->prefix->node_pool);
    prefix_pool_close(&kv->prefix->mark_pool);
    mem_free(kv->prefix->roots);
    mem_free(kv->prefix->runs);
    mem_free(kv->prefix);
}

/* ---- finding ---- */

struct found {
    struct prefix_node *node; /* holds position - 1 of the best place */
    struct prefix_mark *mark; /* whose blocks recurrent groups go on from */
    uint32_t positions;
    uint32_t least;           /* positions before it are of no use */
    uint32_t matched;
    bool diverged, ghost;
    uint32_t stored_id;
};

static void run_enter(const struct kv *kv, const struct prefix_node *n)
{
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        if (n->pages[g].page == 0 && (prefix_has(kv, n, g, KV_FULL) || prefix_has(kv, n, g, KV_WINDOW))) {
            kv->prefix->runs[g] = n->index + 1;
        }
    }
}

/* Has the tree what a row at that position of the node last entered reads? */
static bool usable(const struct kv *kv, uint32_t position)
{
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        if (kv->prefix->runs[g] > prefix_floor(kv, g, position)) {
            return false;
        }
    }
    return true;
}

static bool whole_pages(const struct kv *kv, const struct prefix_node *n)
{
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        if (n->pages[g].page == 0 && (prefix_has(kv, n, g, KV_FULL) || prefix_has(kv, n, g, KV_WINDOW))) {
            return false;
        }
    }
    return true;
}

/* The lowest position the mark's blocks serve. */
static uint32_t mark_lowest(const struct kv *kv, const struct prefix_mark *m)
{
    uint32_t lowest = 1;
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        uint32_t page = kv->layout.groups[g].page, anchor = m->position / page * page;
        lowest = prefix_policy(kv, g, KV_RECURRENT) && anchor > lowest ? anchor : lowest;
    }
    return lowest;
}

/* The best place in the node last entered, whose ids are known up to `position`. */
static void find_in(struct kv *kv, struct prefix_node *n, uint32_t position, struct found *f)
{
    if (!kv->prefix->recurrent) {
        if (position > n->index * KV_PAGE && position >= f->least && position > f->positions && usable(kv, position)) {
            f->node = n;
            f->positions = position;
        }
        return;
    }
    for (struct prefix_mark *m = n->marks; m != NULL; m = m->sibling) {
        uint32_t at = m->position < position ? m->position : position;
        if (at > f->positions && at >= f->least && at >= mark_lowest(kv, m) && usable(kv, at)) {
            f->node = n;
            f->mark = m;
            f->positions = at;
        }
    }
}

/* The one of equals that has all its pages, `best` first; equals stand side by side. */
static struct prefix_node *child_whole(const struct kv *kv, struct prefix_node *best, const uint32_t *ids, uint32_t count, uint32_t same)
{
    for (int way = 0; way < 2; way++) {
        struct prefix_node *c = best;
        for (uint32_t tie = 0; tie < PREFIX_TIES && c != NULL; tie++) {
            if (prefix_common(c->ids, c->count, ids, count) < same) {
                break;
            }
            if (whole_pages(kv, c)) {
                return c;
            }
            c = way == 0 ? prefix_child_before(c) : prefix_child_next(c);
        }
    }
    return best;
}

/* The child with most ids in common. */
static struct prefix_node *child_best(const struct kv *kv, const struct prefix_node *n, const uint32_t *ids, uint32_t count,
                                      uint32_t *same)
{
    struct prefix_node *lower = prefix_lower(n, ids, count), *before = lower != NULL ? prefix_child_before(lower) : prefix_child_last(n);
    struct prefix_node *best = NULL, *const near[2] = {before, lower};
    *same = 0;
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t c = near[i] != NULL ? prefix_common(near[i]->ids, near[i]->count, ids, count) : 0;
        if (c > *same) {
            *same = c;
            best = near[i];
        }
    }
    return best != NULL ? child_whole(kv, best, ids, count, *same) : NULL;
}

static bool is_ghost(const struct kv *kv, const struct prefix_node *n, const uint32_t *ids, uint32_t left)
{
    uint64_t hash = left >= KV_PAGE ? prefix_hash(n, ids, KV_PAGE) : 0;
    return left >= KV_PAGE && kv->prefix->ghosts[hash % PREFIX_GHOSTS] == hash;
}

static void find(struct kv *kv, struct prefix_node *root, const uint32_t *ids, uint32_t count, struct found *f)
{
    struct prefix_node *n = root;
    uint32_t at = 0;
    *f = (struct found){.node = root, .least = root->early ? 0 : kv->layout.start};
    memset(kv->prefix->runs, 0, kv->layout.group_count * sizeof *kv->prefix->runs);
    while (at < count) {
        uint32_t left = count - at, same;
        struct prefix_node *child = child_best(kv, n, ids + at, left < KV_PAGE ? left : KV_PAGE, &same);
        if (child == NULL) {
            f->diverged = n->child_count != 0;
            f->stored_id = f->diverged ? prefix_child_first(n)->ids[0] : 0;
            break;
        }
        run_enter(kv, child);
        find_in(kv, child, at + same < count ? at + same : count - 1, f);
        at += same;
        if (same < KV_PAGE) {
            f->diverged = same < left && same < child->count;
            f->stored_id = f->diverged ? child->ids[same] : 0;
            break;
        }
        n = child;
    }
    f->matched = at;
    uint32_t page = at / KV_PAGE * KV_PAGE;
    f->ghost = is_ghost(kv, n, ids + page, count - page);
}

/* A running sequence that knows more than the tree; NULL. */
static const struct kv_seq *find_running(const struct kv *kv, const struct prefix_node *root, const struct kv_prefix_query *q,
                                         uint32_t count, struct found *f)
{
    const struct kv_seq *best = NULL;
    for (const struct kv_seq *s = kv->seqs; s != NULL; s = s->next) {
        const struct prefix_node *n = s->node;
        if (n == NULL || n->early != root->early || s->covered <= f->positions || memcmp(s->ids, q->ids, (f->positions + 1) * sizeof *s->ids) != 0) {
            continue;
        }
        while (n->parent != NULL) {
            n = n->parent;
        }
        uint32_t same = n == root ? prefix_common(s->ids, s->covered, q->ids, count) : 0;
        if (same > f->matched) {
            f->matched = same;
            f->diverged = same < s->covered && same < count;
            f->stored_id = f->diverged ? s->ids[same] : 0;
        }
        uint32_t position = same < count ? same : count - 1;
        if (position > f->positions && position >= f->least && position >= kv_seq_oldest(s)) {
            f->positions = position;
            best = s;
        }
    }
    return best;
}

/* Does the tree have roots of another key? */
static bool other_keys(const struct kv *kv, struct str key)
{
    const struct prefix *px = kv->prefix;
    for (uint32_t i = 0; i < px->root_count; i += px->root_count > 1 ? px->root_count - 1 : 1) { /* they are in order: first and last */
        const struct prefix_node *root = px->roots[i];
        if (root->key_n != key.n || (key.n != 0 && memcmp(root->key, key.p, key.n) != 0)) {
            return true;
        }
    }
    return false;
}

static void explain(const struct kv *kv, const struct kv_prefix_query *q, const struct found *f, struct kv_prefix_hit *hit)
{
    *hit = (struct kv_prefix_hit){.positions = f->positions, .matched = f->matched, .stored_id = -1};
    if (f->positions + 1 == q->count) {
        hit->miss = KV_MISS_NONE;
    } else if (f->matched > f->positions) {
        hit->miss = KV_MISS_STATE;
    } else if (f->ghost) {
        hit->miss = KV_MISS_EVICTED;
    } else if (f->diverged) {
        hit->miss = KV_MISS_DIVERGED;
        hit->stored_id = f->stored_id;
    } else if (f->matched != 0) {
        hit->miss = KV_MISS_END;
    } else {
        hit->miss = other_keys(kv, q->key) ? KV_MISS_KEY : KV_MISS_EMPTY;
    }
}

/* ---- leasing ---- */

/* Which pages of a group a sequence that goes on at `positions` names: from t->first on. */
static void table_open(const struct kv *kv, struct kv_table *t, uint32_t group, uint32_t positions)
{
    bool recurrent = t->group->policy == KV_RECURRENT;
    t->len = kv_pages_for(t->group, positions);
    t->first = recurrent ? positions / t->group->page : prefix_floor(kv, group, positions);
    memset(t->pages, 0, t->len * sizeof *t->pages);
}

/* A new sequence that names the pages from the found place upwards. */
static int seq_from_tree(struct kv *kv, const struct found *f, const uint32_t *ids, struct kv_seq **out, struct err *err)
{
    int rc = kv_seq_new(kv, out, err);
    if (rc == 0) {
        rc = kv_seq_reserve(kv, *out, f->positions, err);
    }
    if (rc != 0 || f->positions == 0) {
        return rc;
    }
    struct kv_seq *s = *out;
    s->early = f->node->early;
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        struct kv_table *t = &s->tables[g];
        if (!kv_stage_is(t->group->stage, s->early)) {
            continue;
        }
        table_open(kv, t, g, f->positions);
        if (t->group->policy == KV_RECURRENT) {
            t->pages[t->first] = f->mark->blocks[g];
            kv_page_hold(kv, g, f->mark->blocks[g]);
            continue;
        }
        for (struct prefix_node *n = f->node; n->parent != NULL && n->index >= t->first; n = n->parent) {
            if (n->index < t->len) {
                t->pages[n->index] = n->pages[g].page;
                kv_page_hold(kv, g, n->pages[g].page);
            }
        }
    }
    memcpy(s->ids, ids, f->positions * sizeof *ids);
    s->covered = s->room = f->positions;
    return 0;
}

/* The deepest node on the path to `node` that lies wholly before `positions`. */
static struct prefix_node *node_before(struct prefix_node *node, uint32_t positions)
{
    while (node->parent != NULL && (node->index + 1) * KV_PAGE > positions) {
        node = node->parent;
    }
    return node;
}

/* The root under which the sequence goes on, and the best place of it. */
static int look(struct kv *kv, const struct kv_prefix_query *q, struct prefix_node **root, const struct kv_seq **running, struct found *f)
{
    uint32_t start = kv->layout.start, count = q->count, known = 0;
    if (start == 0 || count > start) {
        *root = prefix_root(kv, q->key, false, start == 0);
        if (*root != NULL) {
            find(kv, *root, q->ids, count, f);
            *running = find_running(kv, *root, q, count, f);
            known = f->matched;
        }
        if (start == 0 || (*root != NULL && f->positions != 0)) {
            return *root != NULL ? 0 : ERR_NOMEM;
        }
    }
    count = count < start ? count : start;
    *root = prefix_root(kv, q->key, true, true);
    if (*root == NULL) {
        return ERR_NOMEM;
    }
    find(kv, *root, q->ids, count, f);
    *running = find_running(kv, *root, q, count, f);
    f->matched = known > f->matched ? known : f->matched;
    return 0;
}

int kv_prefix_lease(struct kv *kv, const struct kv_prefix_query *q, struct kv_seq **out, struct kv_prefix_hit *hit, struct err *err)
{
    struct found f;
    struct prefix_node *root;
    const struct kv_seq *running;
    *out = NULL;
    *hit = (struct kv_prefix_hit){.miss = KV_MISS_OFF, .stored_id = -1};
    if (q->count == 0 || q->key.n > KV_PREFIX_KEY_MAX) {
        return err_set(err, ERR_ARGUMENT, "prefix of %u ids under a key of %zu bytes", q->count, q->key.n);
    }
    if (look(kv, q, &root, &running, &f) != 0) {
        return err_nomem(err, "prefix tree", sizeof *root);
    }
    root->attached++; /* so that it stays */
    explain(kv, q, &f, hit);
    int rc = running != NULL ? kv_seq_fork(kv, running, f.positions, out, err)
                             : seq_from_tree(kv, &f, q->ids, out, err);
    root->attached--;
    if (rc != 0) {
        kv_seq_free(kv, *out);
        *out = NULL;
        prefix_root_drop(kv, root);
        return rc;
    }
    struct kv_seq *s = *out;
    struct prefix_node *from = running != NULL ? running->node : f.node;
    if (running == NULL && f.positions != 0) {
        uint32_t place = f.mark != NULL ? f.mark->position : f.positions;
        prefix_mark_make(kv, f.node, place, false, NULL); /* what was of use is kept like what had to be */
        prefix_touch(kv, f.node);
    }
    s->plan = q->plan;
    prefix_attach(kv, s, node_before(from, f.positions));
    s->noted = s->node->parent != NULL ? s->node->index + 1 : 0;
    if (q->reach != 0 && (kv_seq_reserve(kv, s, q->reach, err) != 0 || prefix_promise(kv, s, q->reach) != 0)) {
        kv_seq_free(kv, s);
        *out = NULL;
        return err_nomem(err, "sequence", q->reach * sizeof *s->ids);
    }
    return 0;
}
