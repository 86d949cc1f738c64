/* base/log.c - see log.h. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

static log_sink sink_fn;
static void *sink_ctx;
static enum log_level sink_max;

void log_sink_set(log_sink sink, void *ctx, enum log_level max)
{
    sink_fn = sink;
    sink_ctx = ctx;
    sink_max = max;
}

void log_put(enum log_level level, const char *fmt, ...)
{
    if (!sink_fn || level > sink_max)
        return;
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    sink_fn(level, text, sink_ctx);
}
