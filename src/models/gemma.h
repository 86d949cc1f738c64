/* models/gemma.h - what the Gemma architectures share. */
#ifndef RH_MODELS_GEMMA_H
#define RH_MODELS_GEMMA_H

#include "models/arch.h"

/* Every `period`-th layer is full, the others slide; 0: none slides. */
void gemma_layers_by_period(struct hparams *hp, uint32_t period);
/* query_pre_attn_scalar, the two soft caps, the window; and the scale of the embedding. */
int gemma_read_scales(struct hparams *hp, const struct config_reader *cfg, struct err *err);

#endif
