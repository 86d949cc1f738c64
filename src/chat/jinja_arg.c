/* chat/jinja_arg.c - reading arguments: a type check and Python's complaint in one call. */
#include "chat/jinja_int.h"

bool jarg_int(struct jx *jx, struct jv v, int64_t *out)
{
    if (jx->rc)
        return false;
    if (jv_index_int(v, out))
        return true;
    if (v.type == JT_UNDEF)
        jundef_raise(jx, v);
    else
        jx_fail(jx, ERR_TEMPLATE, "'%s' object cannot be interpreted as an integer", jv_type_name(v));
    return false;
}

bool jarg_str(struct jx *jx, struct jv v, struct jstr **out)
{
    if (jx->rc)
        return false;
    if (v.type == JT_STR) {
        *out = v.s;
        return true;
    }
    jx_fail(jx, ERR_TEMPLATE, "expected a string argument, got %s", jv_type_name(v));
    return false;
}

int64_t jarg_int_or(struct jx *jx, struct jv v, int64_t fallback)
{
    int64_t out = fallback;
    if (jv_given(v) && v.type != JT_NONE)
        jarg_int(jx, v, &out);
    return out;
}
