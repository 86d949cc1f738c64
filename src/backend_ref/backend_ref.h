/* backend_ref/backend_ref.h - the meaning of every op in plain f32 C on dequantised weights; slow on purpose.
 *
 * The queue is real at its border: an op's parameters are copied into a record.  By default a record runs when it is enqueued; with
 * device_config.level = "deferred" records run only inside event_wait, so a test proves that nobody reads results early and that
 * everything an op names stays valid.  (event_done is then false until somebody waits.) */
#ifndef RH_BACKEND_REF_H
#define RH_BACKEND_REF_H

#include "tensor/backend.h"

extern const struct backend backend_ref;

#endif
