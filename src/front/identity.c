/* front/identity.c - the numeric identity: everything that may change one bit of the logits, in one line.
 *
 * Equal lines: equal answers, whatever the schedule, thread count or (where the backend says so) instruction level. */
#include "front/front_int.h"

static int content_hash(struct rh_model *m, struct hash128 *out, struct err *err)
{
    int rc = 0;
    pthread_mutex_lock(&m->mutex);
    if (!m->content_known) {
        rc = model_content_hash(m->model, &m->content, err);
        m->content_known = rc == 0;
    }
    *out = m->content;
    pthread_mutex_unlock(&m->mutex);
    return rc;
}

int identity_content(struct rh_model *m, char hex[33], struct err *err)
{
    struct hash128 hash;
    int rc = content_hash(m, &hash, err);
    if (rc == 0)
        hash128_hex(hash, hex);
    return rc;
}

int identity_put(struct rh_model *m, struct buf *out, struct err *err)
{
    struct device_info d;
    char hex[33];
    int rc = identity_content(m, hex, err);
    if (rc)
        return rc;
    m->host->backend->device_info(m->host->device, &d);
    const struct model_info *info = model_info(m->model);
    buf_printf(out, "model=%s arch=%s context=%u kv=", hex, info->arch, info->context);
    kv_config_put(m, out);
    buf_printf(out, " kv_start=%u adapters= backend=%s arithmetic=%u", m->options.kv_start, d.backend, d.arithmetic);
    if (!d.levels_equal)
        buf_printf(out, " level=%s", d.level);
    return 0;
}
