/* base/log.h - notices for whoever runs the program.  Library code never prints: it calls log_put, and cli/ sets the sink. */
#ifndef RH_BASE_LOG_H
#define RH_BASE_LOG_H

enum log_level { LOG_ERROR, LOG_WARN, LOG_NOTICE, LOG_DEBUG };

typedef void (*log_sink)(enum log_level level, const char *text, void *ctx);

/* Process lifetime; set before threads start.  NULL (the default) drops everything. */
void log_sink_set(log_sink sink, void *ctx, enum log_level max);
void log_put(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
