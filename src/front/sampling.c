/* front/sampling.c - sampling as the public header says it <-> as the engine wants it; ranges are checked here. */
#include "base/mem.h"
#include "front/front_int.h"

static const char *const filter_names[FILTER_COUNT] = {"top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc"};

void sampling_defaults(const struct rh_model *m, struct rh_sampling *out)
{
    struct sample_params p = {.top_p = 1, .typical_p = 1, .repetition_penalty = 1};
    if (m->model)
        model_default_sampling(m->model, &p); /* also says what holds when the files name nothing */
    *out = (struct rh_sampling){.temperature = p.temperature, .top_p = p.top_p, .min_p = p.min_p, .typical_p = p.typical_p,
                                .top_n_sigma = p.top_n_sigma, .top_k = p.top_k, .xtc_probability = p.xtc_probability,
                                .xtc_threshold = p.xtc_threshold, .repetition_penalty = p.repetition_penalty,
                                .presence_penalty = p.presence_penalty, .frequency_penalty = p.frequency_penalty};
}

static int parse_order(const char *text, uint8_t order[FILTER_COUNT], struct err *err)
{
    struct str rest = str_of(text), piece;
    uint32_t n = 0, seen = 0;
    while (str_split(&rest, ',', &piece)) {
        uint32_t i = 0;
        piece = str_trim(piece);
        while (i < FILTER_COUNT && !str_is(piece, filter_names[i]))
            i++;
        if (i == FILTER_COUNT || seen >> i & 1)
            return err_set(err, ERR_ARGUMENT, "sampler order: '%.*s' is %s; expected top_n_sigma, top_k, typical_p, top_p, min_p, xtc once each",
                           STR_ARG(piece), i == FILTER_COUNT ? "unknown" : "there twice");
        seen |= 1u << i;
        order[n++] = (uint8_t)i;
    }
    if (n != FILTER_COUNT)
        return err_set(err, ERR_ARGUMENT, "sampler order: expected all %d filters, got %u", FILTER_COUNT, n);
    return 0;
}

static int check_range(const char *name, float v, float low, float high, struct err *err)
{
    if (v >= low && v <= high)
        return 0;
    return err_set(err, ERR_ARGUMENT, "%s: expected a number from %g to %g, got %g", name, (double)low, (double)high, (double)v);
}

static int check_ranges(const struct rh_sampling *in, struct err *err)
{
    int rc;
    if ((rc = check_range("temperature", in->temperature, 0, 1000, err)) || (rc = check_range("top_p", in->top_p, 0, 1, err)) ||
        (rc = check_range("min_p", in->min_p, 0, 1, err)) || (rc = check_range("typical_p", in->typical_p, 0, 1, err)) ||
        (rc = check_range("top_n_sigma", in->top_n_sigma, -1, 1000, err)) ||
        (rc = check_range("xtc_probability", in->xtc_probability, 0, 1, err)) ||
        (rc = check_range("xtc_threshold", in->xtc_threshold, 0, 1, err)) ||
        (rc = check_range("repetition_penalty", in->repetition_penalty, 0.001f, 1000, err)) ||
        (rc = check_range("presence_penalty", in->presence_penalty, -1000, 1000, err)))
        return rc;
    return check_range("frequency_penalty", in->frequency_penalty, -1000, 1000, err);
}

int sampling_convert(const struct rh_sampling *in, struct sample_params *out, struct sample_bias **biases, struct err *err)
{
    int rc = check_ranges(in, err);
    *biases = NULL;
    *out = (struct sample_params){.temperature = in->temperature, .top_n_sigma = in->top_n_sigma, .top_k = in->top_k,
                                  .typical_p = in->typical_p, .top_p = in->top_p, .min_p = in->min_p,
                                  .xtc_probability = in->xtc_probability, .xtc_threshold = in->xtc_threshold,
                                  .repetition_penalty = in->repetition_penalty, .presence_penalty = in->presence_penalty,
                                  .frequency_penalty = in->frequency_penalty, .order = {0, 1, 2, 3, 4, 5}};
    if (rc == 0 && in->order)
        rc = parse_order(in->order, out->order, err);
    if (rc || in->bias_count == 0)
        return rc;
    if (in->bias_count > UINT32_MAX / 16 || !(*biases = mem_try_array(in->bias_count, sizeof **biases)))
        return err_nomem(err, "logit biases", in->bias_count * sizeof **biases);
    for (size_t i = 0; i < in->bias_count; i++) {
        (*biases)[i] = (struct sample_bias){in->biases[i].id, in->biases[i].bias};
        if (in->biases[i].bias != in->biases[i].bias || in->biases[i].bias == __builtin_inff()) {
            mem_free(*biases);
            *biases = NULL;
            return err_set(err, ERR_ARGUMENT, "logit bias of id %u: expected a finite number or -inf, got %g", in->biases[i].id,
                           (double)in->biases[i].bias);
        }
    }
    out->biases = *biases;
    out->bias_count = (uint32_t)in->bias_count;
    return 0;
}
