/* models/qwen.h - what the Qwen architectures share. */
#ifndef RH_MODELS_QWEN_H
#define RH_MODELS_QWEN_H

#include "models/arch.h"

/* layer_types, or use_sliding_window with max_window_layers: layers from that one on slide. */
int qwen_read_sliding(struct hparams *hp, const struct config_reader *cfg, struct err *err);

#endif
