/* plan/plan.c - see plan.h. */
#include "plan/plan.h"

#include "base/file.h"
#include "base/str.h"
#include "base/thread.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

void plan_add(struct plan *p, const char *space, const char *component, uint64_t planned_bytes, uint64_t live_bytes)
{
    if (p->count < PLAN_ROWS_MAX)
        p->rows[p->count++] = (struct plan_row){space, component, planned_bytes, live_bytes};
}

uint64_t plan_total(const struct plan *p, const char *space)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < p->count; i++)
        if (!space || strcmp(space, p->rows[i].space) == 0)
            sum += p->rows[i].planned_bytes;
    return sum;
}

/* "Name:   123 kB" lines of a /proc file -> bytes; 0 when absent. */
static uint64_t proc_kib(const char *path, const char *key)
{
    char line[256];
    unsigned long long kib = 0;
    size_t n = strlen(key);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, n) == 0 && sscanf(line + n, "%llu", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return (uint64_t)kib << 10;
}

static uint64_t read_number(const char *path) /* UINT64_MAX: absent or "max" */
{
    unsigned long long v;
    FILE *f = fopen(path, "re");
    bool ok = f && fscanf(f, "%llu", &v) == 1;
    if (f)
        fclose(f);
    return ok ? v : UINT64_MAX;
}

/* The tightest limit on the way from this process's cgroup to the root, and what it leaves. */
static void cgroup_limits(uint64_t *limit, uint64_t *left)
{
    char cg[THREAD_CGROUP_MAX], path[700];
    *limit = *left = UINT64_MAX;
    thread_cgroup(cg);
    do {
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", cg);
        uint64_t max = read_number(path);
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.current", cg);
        uint64_t now = read_number(path);
        if (max != UINT64_MAX) {
            *limit = max < *limit ? max : *limit;
            uint64_t rest = now == UINT64_MAX || now > max ? 0 : max - now;
            *left = rest < *left ? rest : *left;
        }
    } while (thread_cgroup_up(cg));
}

void plan_machine_read(struct plan_machine *out)
{
    uint64_t limit, left;
    cgroup_limits(&limit, &left);
    out->total_bytes = proc_kib("/proc/meminfo", "MemTotal:");
    out->available_bytes = proc_kib("/proc/meminfo", "MemAvailable:");
    out->rss_anon_bytes = proc_kib("/proc/self/status", "RssAnon:");
    if (limit < out->total_bytes)
        out->total_bytes = limit;
    if (left < out->available_bytes)
        out->available_bytes = left;
}

static uint64_t dir_bytes(const char *path)
{
    char file[4096];
    uint64_t sum = 0;
    struct dirent *d;
    DIR *dir = opendir(path);
    while (dir && (d = readdir(dir)))
        if (str_ends(str_of(d->d_name), STR(".safetensors")) && file_join(file, sizeof file, path, d->d_name, NULL) == 0) {
            int64_t n = file_size(file);
            sum += n > 0 ? (uint64_t)n : 0;
        }
    if (dir)
        closedir(dir);
    return sum;
}

uint64_t plan_file_bytes(const char *path)
{
    unsigned no, of;
    const char *tail = strstr(path, "-00001-of-");
    int64_t n = file_size(path);
    if (file_is_dir(path))
        return dir_bytes(path);
    if (!tail || sscanf(tail, "-%5u-of-%5u.gguf", &no, &of) != 2 || of > 99999)
        return n > 0 ? (uint64_t)n : 0;
    uint64_t sum = 0;
    for (unsigned i = 1; i <= of; i++) {
        char file[4096];
        snprintf(file, sizeof file, "%.*s-%05u-of-%05u.gguf", (int)(tail - path), path, i, of);
        n = file_size(file);
        sum += n > 0 ? (uint64_t)n : 0;
    }
    return sum;
}

int plan_admit_weights(const char *path, struct err *err)
{
    struct plan_machine m;
    uint64_t bytes = plan_file_bytes(path);
    plan_machine_read(&m);
    if (m.available_bytes == 0 || bytes <= m.available_bytes)
        return 0;
    return err_set(err, ERR_NOMEM, "%s: weights of %llu MiB, but %llu MiB of memory are available (of %llu)", path,
                   (unsigned long long)(bytes >> 20), (unsigned long long)(m.available_bytes >> 20),
                   (unsigned long long)(m.total_bytes >> 20));
}

void plan_space_read(const struct device_info *d, uint64_t limit_bytes, struct plan_space *out)
{
    struct plan_machine m;
    if (!d->own_memory) {
        plan_machine_read(&m);
        *out = (struct plan_space){.name = "host", .total_bytes = m.total_bytes, .available_bytes = m.available_bytes};
        return;
    }
    uint64_t left = limit_bytes > d->memory_held_bytes ? limit_bytes - d->memory_held_bytes : 0;
    *out = (struct plan_space){.name = d->backend, .own = true, .total_bytes = d->memory_total_bytes, .available_bytes = d->memory_free_bytes};
    if (limit_bytes && left < out->available_bytes)
        out->available_bytes = left;
}

static unsigned long long mib(uint64_t bytes)
{
    return (unsigned long long)((bytes + (1u << 20) - 1) >> 20);
}

int plan_admit_device(const char *what, const struct plan_space *space, const struct model_info *model, uint64_t state_bytes, struct err *err)
{
    uint64_t needed = model->weight_bytes + model->step_bytes + state_bytes;
    if (needed <= space->available_bytes)
        return 0;
    return err_set(err, ERR_NOMEM, "%s: weights of %llu MiB, step buffers of %llu MiB and state of %llu MiB need %llu MiB, but %llu MiB of %s memory may be "
                   "taken (of %llu)", what, mib(model->weight_bytes), mib(model->step_bytes), mib(state_bytes), mib(needed),
                   (unsigned long long)(space->available_bytes >> 20), space->name, (unsigned long long)(space->total_bytes >> 20));
}

/* Of so many parts: experts of one layer after the other, then whole layers. */
static struct plan_away parts_away(uint32_t parts, uint32_t layers, bool experts)
{
    if (!experts)
        return (struct plan_away){parts, 0};
    return parts <= layers ? (struct plan_away){0, parts} : (struct plan_away){parts - layers, layers};
}

int plan_fit_away(uint32_t layers, bool experts, int (*fits)(void *ctx, struct plan_away away, struct err *err), void *ctx, struct plan_away *out,
                  struct err *err)
{
    uint32_t low = 0, high = experts ? 2 * layers : layers; /* high fits, if anything does */
    *out = parts_away(high, layers, experts);
    int rc = fits(ctx, *out, err);
    while (rc == 0 && low < high) {
        struct err less = {0};
        uint32_t middle = low + (high - low) / 2;
        int tried = fits(ctx, parts_away(middle, layers, experts), &less);
        if (tried && tried != ERR_NOMEM) {
            *err = less;
            return tried;
        }
        low = tried ? middle + 1 : low;
        high = tried ? high : middle;
    }
    *out = parts_away(high, layers, experts);
    return rc ? rc : fits(ctx, *out, err); /* the last one asked is the one that is taken */
}

int plan_admit_away(const char *what, uint64_t away_bytes, struct err *err)
{
    struct plan_machine m;
    plan_machine_read(&m);
    if (away_bytes == 0 || m.available_bytes == 0 || away_bytes <= m.available_bytes / 10 * 9)
        return 0;
    return err_set(err, ERR_NOMEM, "%s: %llu MiB of weights do not fit the device and would stay in the host's memory, of which %llu MiB are available (of "
                   "%llu)", what, mib(away_bytes), (unsigned long long)(m.available_bytes >> 20), (unsigned long long)(m.total_bytes >> 20));
}

uint64_t plan_state_budget(const struct kv_config *kv, uint64_t asked, uint64_t free_bytes)
{
    if (asked)
        return asked;
    uint64_t whole = kv_plan_bytes(kv, kv->context_max), least = kv_plan_bytes(kv, 1), most = free_bytes / 10 * 9;
    uint64_t budget = whole < most ? whole : most;
    return budget > least ? budget : least;
}

uint32_t plan_positions_alone(const struct kv_config *kv, uint64_t budget_bytes, uint32_t context)
{
    uint32_t low = 0, high = context; /* low fits, all above high do not */
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (kv_plan_bytes(kv, middle) <= budget_bytes)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

void plan_make(const struct plan_input *in, struct plan *out)
{
    const struct model_info *m = in->model;
    const char *space = in->space ? in->space : "host";
    *out = (struct plan){0};
    plan_add(out, space, "weights", m->weight_bytes, in->loaded ? m->weight_bytes : 0);
    if (m->away_bytes)
        plan_add(out, "host", "weights", m->away_bytes, in->loaded ? m->away_bytes : 0);
    plan_add(out, space, "step buffers", m->step_bytes, in->loaded ? m->step_bytes : 0);
    plan_add(out, space, "state", in->state_planned, in->state_live);
    plan_add(out, "host", "text tables", in->text_bytes, in->text_bytes);
    if (in->draft) {
        plan_add(out, space, "draft weights", in->draft->weight_bytes, in->draft->weight_bytes);
        plan_add(out, space, "draft step buffers", in->draft->step_bytes, in->draft->step_bytes);
        plan_add(out, space, "draft state", in->draft_state_planned, in->draft_state_live);
    }
}
