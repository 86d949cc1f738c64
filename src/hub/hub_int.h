/* hub/hub_int.h - inside src/hub only. */
#ifndef RH_HUB_INT_H
#define RH_HUB_INT_H

#include "base/arena.h"
#include "hub/hub.h"

enum { HUB_PATH_MAX = 4096 };
enum { HUB_FILES_MAX = 4096 };

/* One file of a repository.  Arena-owned by the listing. */
struct hub_file {
    struct str path;
    uint64_t size_bytes;
    char sha256[65]; /* "" when the hub names none (small git files) */
};
struct hub_listing {
    struct arena arena;
    struct hub_file *files;
    size_t count, cap;
    char commit[65]; /* the revision all files are fetched from */
};

/* api.c: the tree of a repository, and which of its files a spec means (compacted in place; files[0] is the one to open). */
int hub_list(const char *repo, const struct hub_pull_options *opt, struct hub_listing *out, struct err *err);
int hub_select(struct hub_listing *l, struct str wanted, const char *repo, struct err *err);
void hub_listing_free(struct hub_listing *l);
bool hub_path_safe(struct str path);

/* http.c */
struct hub_reply { /* of a small request */
    long status;
    struct buf body;
    char next[2048];   /* Link: rel="next" */
    char commit[65];   /* X-Repo-Commit */
    char etag[129];    /* X-Linked-Etag or ETag, quotes off */
    uint64_t size;     /* X-Linked-Size or Content-Length */
    bool has_size;
};
const char *hub_endpoint(const struct hub_pull_options *opt);
void *hub_http_handle(const struct hub_pull_options *opt, const char *url, void **headers); /* CURL*, common options set */
int hub_http_get(const struct hub_pull_options *opt, const char *url, bool head, struct hub_reply *out, struct err *err);
int hub_http_status_error(long status, const char *url, struct err *err);

/* fetch.c: one file by parallel ranges into dir/path.partial, then renamed. */
struct hub_fetch {
    const struct hub_pull_options *opt;
    const char *repo, *commit, *dir;
    uint64_t done_before_bytes, total_bytes; /* of the pull, for progress */
};
int hub_fetch_file(const struct hub_fetch *f, const struct hub_file *file, struct err *err);

/* store.c */
int hub_entry_dir(char out[HUB_PATH_MAX], const char *store, const char *name, struct err *err);
int hub_entry_write(const char *dir, const char *name, const struct hub_file *files, size_t count, const char *source, const char *revision,
                    struct err *err);
void hub_entry_prune(const char *dir); /* an entry without any file is none; its lock is held */

#endif
