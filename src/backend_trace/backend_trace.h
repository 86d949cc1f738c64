/* backend_trace/backend_trace.h - writes down the ops it is given and computes nothing: a golden listing of an architecture.
 *
 * Weights are only names and shapes (no bytes are read); buffers are zero pages that cost nothing until somebody writes to them.
 * One line an op: its name, the shapes [rows][cols] of its tensors, weights by name and type, parameters that are not the default.
 * Copies between host and device are not listed.  Fusions are left out of the table, so a listing shows required ops only. */
#ifndef RH_BACKEND_TRACE_H
#define RH_BACKEND_TRACE_H

#include "base/buf.h"
#include "tensor/backend.h"

extern const struct backend backend_trace;

/* The listing so far; owned by the device.  buf_check it: it has a ceiling. */
struct buf *trace_text(struct device *d);

#endif
