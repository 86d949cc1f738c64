/* models/olmo.h - what OLMo 2 and 3 share. */
#ifndef RH_MODELS_OLMO_H
#define RH_MODELS_OLMO_H

#include "models/arch.h"

enum { OLMO_BINDS = 19 };
extern const struct bind olmo_binds[OLMO_BINDS];

void olmo_defaults(struct hparams *hp);

#endif
