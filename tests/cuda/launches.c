/* tests/cuda/launches.c - every launch of the CUDA backend could be made: ops of the smallest, odd and largest shapes, on GPUs with little and with much
 * shared memory, over a runtime that looks at launches and runs none (fake_runtime.h).  Needs no GPU; says nothing about what kernels compute.
 *
 * usage: cuda_launches */
#include "fake_runtime.h"

#include "backend_cuda/backend_cuda.h"
#include "backend_cuda/kernels_broad.h"
#include "backend_cuda/kernels_router.h"
#include "ops/random_weight.h"
#include "tensor/kv_codec.h"

#include <sys/mman.h>

enum { ROWS_MAX = 65536, COLS_MAX = 53248, OUT_MAX = 262144, EXPERTS_MAX = 512, TOP_MAX = 8, EXPERT_COLS = 7168 };
static const size_t ROOM = (size_t)1 << 40; /* of addresses: nothing is read or written there */

static struct device *device;
static unsigned char *zeros; /* any weight's bytes */
static size_t ops;
static const struct random_kind q8 = {.type = DTYPE_Q8_0, .name = "Q8_0"}, bf16 = {.type = DTYPE_BF16, .name = "BF16"};

/* ---- what is known of kernels ---- */

static bool one_of(const void *kernel, const void *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == kernel)
            return true;
    return false;
}

static bool is_tall(const void *kernel)
{
    for (int k = 0; k < CUDA_KIND_COUNT; k++)
        for (int f = 0; f < CUDA_TALL_FORMS; f++)
            if (cuda_kernels_tall[k][f].kernel == kernel)
                return true;
    return false;
}

static bool is_wide(const void *kernel)
{
    return kernel == cuda_kernel_attend_wide(64) || kernel == cuda_kernel_attend_wide(128);
}

static bool is_broad(const void *kernel)
{
    return kernel == cuda_kernel_attend_broad(256) || kernel == cuda_kernel_attend_broad(512);
}

static bool is_router(const void *kernel)
{
    return kernel == cuda_kernel_router(128) || kernel == cuda_kernel_router(256) || kernel == cuda_kernel_router(512);
}

const char *fake_launch_wrong(const struct fake_launch *l)
{
    bool row = one_of(l->kernel, cuda_kernels_row, CUDA_KIND_COUNT), tall = is_tall(l->kernel), wide = is_wide(l->kernel), broad = is_broad(l->kernel),
         router = is_router(l->kernel);
    struct device_info info;
    backend_cuda.device_info(device, &info);
    if ((row || tall || wide || broad || router || l->kernel == cuda_kernel_chain) && strcmp(info.level, "sm_90a") != 0)
        return "a kernel of Hopper's instructions";
    if ((tall && l->grid[0] % CUDA_TALL_CLUSTER) || (broad && l->grid[0] % CUDA_ATTEND_BROAD_CLUSTER) || (router && l->grid[0] != CUDA_ROUTER_CLUSTER))
        return "blocks in no whole clusters";
    uint32_t threads = row ? CUDA_ROW_THREADS : tall ? CUDA_TALL_THREADS : wide ? CUDA_ATTEND_WIDE_THREADS : 0;
    if (one_of(l->kernel, cuda_kernels_expert, CUDA_KIND_COUNT))
        threads = CUDA_EXPERT_THREADS;
    if (broad)
        threads = l->kernel == cuda_kernel_attend_broad(256) ? 256 : 512;
    if (router || l->kernel == cuda_kernel_chain)
        threads = CUDA_CHAIN_THREADS;
    if (l->kernel == cuda_kernel_attend_row)
        threads = CUDA_ATTEND_ROW_THREADS;
    for (int f = 0; f < KV_FORMAT_COUNT; f++)
        for (uint32_t d = 64; d <= 128; d += 64) {
            struct cuda_stream stream = cuda_kernel_attend_stream(d, (enum kv_format)f);
            if (stream.kernel == l->kernel && (l->block != stream.threads || l->smem != stream.smem))
                return "not the stream form's threads or shared memory";
        }
    return threads && l->block != threads ? "other threads than the kernel is made for" : NULL;
}

/* ---- inputs ---- */

static void must(const char *what, int rc, const struct err *err)
{
    ops++;
    if (rc == 0)
        return;
    printf("failed: %s: %d %s\n", what, rc, err->text);
    exit(1);
}

static float *floats(void) /* of a tensor: nobody looks at it */
{
    static size_t at;
    at = (at + ((size_t)64 << 30)) % ROOM;
    return (float *)(void *)(zeros + ROOM + at);
}

static struct tensor tensor(uint32_t rows, uint32_t cols)
{
    return (struct tensor){floats(), rows, cols, cols};
}

static struct weight *weight(const struct random_kind *k, uint32_t rows, uint32_t cols, uint32_t experts, unsigned use)
{
    static struct weight_src each[EXPERTS_MAX];
    struct err err = {0};
    struct weight *w = NULL;
    struct weight_src src = {.name = k->name, .type = k->type, .rows = rows, .cols = cols, .data = zeros, .bits = k->bits, .group = k->group,
                             .scale_type = k->scale_type};
    src.row_bytes = k->type == DTYPE_MLX ? (uint64_t)cols * k->bits / 8 : (uint64_t)cols / dtype_block_len(k->type) * dtype_block_bytes(k->type);
    if (k->type == DTYPE_MLX || k->split)
        src.scales = src.biases = zeros;
    for (uint32_t e = 0; e < experts; e++)
        each[e] = src;
    src.n_experts = experts, src.experts = experts ? each : NULL;
    must(k->name, backend_cuda.weight_prepare(device, &src, use, &w, &err), &err);
    return w;
}

static void finish(const char *what)
{
    struct err err = {0};
    uint64_t event = 0;
    int rc = backend_cuda.event_record(device, &event);
    must(what, backend_cuda.event_wait(device, rc ? 0 : event, &err), &err);
    must(what, rc, &err);
}

/* ---- ops ---- */

static void linears(const struct random_kind *k, uint32_t out, uint32_t cols, unsigned use)
{
    static const uint32_t rows[] = {1, 2, 9, 17, 32, 33, 48, 130, 2048, ROWS_MAX};
    struct err err = {0};
    struct weight *w = weight(k, out, cols, 0, WEIGHT_LINEAR | use), *v = weight(k, out, cols, 0, WEIGHT_LINEAR | use);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tensor x = tensor(rows[i], cols), y = tensor(rows[i], out);
        struct op_linear linear = {.w = w, .x = x, .y = y, .alpha = 0.5f, .add = true};
        struct op_norm_linear several = {.x = x, .norm_w = floats(), .n = 3, .w = {w, v, w}, .y = {y, y, y}};
        struct op_norm_gated gated = {.x = x, .norm_w = floats(), .gate = w, .up = v, .y = y};
        for (int turn = 0; turn < 9; turn++) { /* three logs, the second and the third as a graph */
            must("linear", backend_cuda.linear(device, &linear), &err);
            must("norm_linear", backend_cuda.norm_linear(device, &several), &err);
            must("norm_gated", backend_cuda.norm_gated(device, &gated), &err);
            if (turn % 3 == 2)
                finish(k->name);
        }
    }
    backend_cuda.weight_free(device, w), backend_cuda.weight_free(device, v);
}

static void heads(const struct random_kind *k, uint32_t cols)
{
    struct err err = {0};
    struct weight *w = weight(k, 4 * 33, cols, 0, WEIGHT_LINEAR);
    for (uint32_t rows = 1; rows <= ROWS_MAX; rows *= 256) {
        struct op_linear_heads op = {.w = w, .n_heads = 4, .tail = 16, .x = tensor(rows, 4 * (cols + 16)), .y = tensor(rows, 4 * (33 + 16))};
        must("linear_heads", backend_cuda.linear_heads(device, &op), &err);
        finish(k->name);
    }
    backend_cuda.weight_free(device, w);
}

static void recurrent(uint32_t rows, uint32_t spans)
{
    static struct state_part parts[64];
    const struct state_layer conv = {{.anchor = STATE_ANCHOR_CONV, .heads = 1, .channels = 2000, .taps = 3}, parts};
    const struct state_layer net = {{.anchor = STATE_ANCHOR, .heads = 16, .channels = 2 * 128 + 2 * 256, .taps = 4, .values = 2, .d_k = 128, .d_v = 256}, parts};
    const struct kv_span *at = (void *)floats();
    const uint32_t *tables = (void *)floats();
    uint32_t cols = net.shape.heads * net.shape.channels, values = net.shape.heads * net.shape.values;
    struct err err = {0};
    struct op_short_conv c = {.x = tensor(rows, 3 * 2000), .y = tensor(rows, 2000), .w = floats(), .layer = &conv, .spans = at, .span_count = spans, .tables = tables};
    struct op_delta_net d = {.qkv = tensor(rows, cols), .a = tensor(rows, values), .b = tensor(rows, values), .y = tensor(rows, values * 256), .conv = floats(),
                             .layer = &net, .spans = at, .span_count = spans, .tables = tables};
    struct op_mamba m = {.xbc = tensor(rows, cols), .dt = tensor(rows, values), .times = tensor(rows, values), .y = tensor(rows, values * 256), .conv = floats(),
                         .skip = floats(), .layer = &net, .spans = at, .span_count = spans, .tables = tables};
    must("short_conv", backend_cuda.short_conv(device, &c), &err);
    must("delta_net", backend_cuda.delta_net(device, &d), &err);
    must("mamba", backend_cuda.mamba(device, &m), &err);
    finish("recurrent");
}

/* What a step begins and ends with: small copies are gathered, large ones are not. */
static void copies(void)
{
    static unsigned char host[1 << 20];
    struct err err = {0};
    void *to = NULL;
    must("buffer", backend_cuda.buffer_new(device, sizeof host, &to, &err), &err);
    for (size_t n = 4; n <= sizeof host; n *= 8)
        for (int i = 0; i < 3000; i += n > 4096 ? 500 : 1) {
            struct op_copy_in in = {to, host, n};
            struct op_copy_out out = {host, to, n};
            struct op_copy copy = {to, (unsigned char *)to + n / 2, n / 2};
            must("copy_in", backend_cuda.copy_in(device, &in), &err);
            must("copy", backend_cuda.copy(device, &copy), &err);
            must("copy_out", i % 100 ? 0 : backend_cuda.copy_out(device, &out), &err);
        }
    finish("copies");
    backend_cuda.buffer_free(device, to, sizeof host);
}

static void rows_of(const struct random_kind *k, uint32_t rows, uint32_t cols)
{
    struct err err = {0};
    struct weight *w = weight(k, 1000, 256, 0, WEIGHT_EMBED);
    struct tensor x = tensor(rows, cols), y = tensor(rows, cols), small = tensor(rows, 256), one = tensor(1, cols), some = tensor(rows, 2 * 64);
    struct op_embed embed = {.w = w, .ids = (void *)floats(), .y = small, .scale = 1};
    struct op_gated gated = {.gate = x, .up = x, .y = y};
    struct op_norm norm = {.x = x, .y = y, .dim = cols, .w = floats(), .scale = 1}, by_head = {.x = small, .y = small, .dim = 64, .w = floats(), .scale = 1};
    struct op_blend blend = {.n = 4, .m = 4, .x = {x, x, x, x}, .base = {x, x, x, x}, .y = {y, y, y, y}, .coef = some};
    struct op_rope_table table = {.pos = (void *)floats(), .inv_freq = floats(), .n = 64, .mscale = 1, .table = some};
    struct op_rope rope = {.x = small, .n_heads = 2, .head_dim = 128, .table = some};
    struct op_gather gather = {.x = x, .y = one, .rows = (void *)floats()};
    struct op_scale scale = {.x = x, .scale = 2};
    struct op_softcap cap = {.x = x, .cap = 30};
    struct op_match match = {.x = x, .y = y};
    struct op_sparsify sparsify = {.x = x};
    struct op_route route = {.logits = tensor(rows, 256), .score = ROUTE_SIGMOID, .top = 8, .groups = 8, .group_top = 4, .group_best = 2, .ids = (void *)floats(),
                             .weights = floats()};
    must("embed", backend_cuda.embed(device, &embed), &err);
    must("gated", backend_cuda.gated(device, &gated), &err);
    must("norm", backend_cuda.norm(device, &norm), &err);
    must("norm by head", backend_cuda.norm(device, &by_head), &err);
    must("blend", backend_cuda.blend(device, &blend), &err);
    must("rope_table", backend_cuda.rope_table(device, &table), &err);
    must("rope", backend_cuda.rope(device, &rope), &err);
    must("gather", backend_cuda.gather(device, &gather), &err);
    must("scale", backend_cuda.scale(device, &scale), &err);
    must("softcap", backend_cuda.softcap(device, &cap), &err);
    must("match", backend_cuda.match(device, &match), &err);
    must("sparsify", backend_cuda.sparsify(device, &sparsify), &err);
    must("route", backend_cuda.route(device, &route), &err);
    finish("rows");
    backend_cuda.weight_free(device, w);
}

static void experts(const struct random_kind *k, const struct random_kind *other, uint32_t count, uint32_t top, uint32_t hidden, uint32_t ffn)
{
    static const uint32_t rows[] = {1, 3, 6, 47, 300, 2100, 8192, ROWS_MAX};
    struct err err = {0};
    struct weight *w = weight(k, ffn, hidden, count, WEIGHT_LINEAR), *v = weight(other, ffn, hidden, count, WEIGHT_LINEAR),
                  *down = weight(k, hidden, ffn, count, WEIGHT_LINEAR), *beside = weight(k, ffn, hidden, 0, WEIGHT_LINEAR),
                  *router = weight(&bf16, count, hidden, 0, WEIGHT_LINEAR);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t slots = rows[i] * top, *ids = (void *)floats();
        float *weights = floats();
        struct tensor x = tensor(rows[i], hidden), mid = tensor(slots, ffn), out = tensor(slots, hidden), y = tensor(rows[i], hidden);
        struct op_route route = {.logits = tensor(rows[i], count), .score = ROUTE_SIGMOID, .top = top, .scale = 1, .ids = ids, .weights = weights};
        struct op_norm norm = {.x = y, .y = x, .dim = hidden, .w = floats(), .scale = 1};
        struct op_linear logits = {.w = router, .x = x, .y = route.logits, .alpha = 1};
        struct op_expert_gated gated = {.x = x, .y = mid, .gate = w, .up = v, .ids = ids, .scratch_gate = mid, .scratch_up = tensor(slots, ffn)};
        struct op_linear shared = {.w = beside, .x = x, .y = tensor(rows[i], ffn), .alpha = 1};
        struct op_expert_output output = {.linear = {.w = down, .x = mid, .y = out, .ids = ids}, .sum = {.x = out, .y = y, .weights = weights, .add = true}};
        must("norm", backend_cuda.norm(device, &norm), &err);
        must("router", backend_cuda.linear(device, &logits), &err);
        must("route", backend_cuda.route(device, &route), &err);
        must("expert_gated", backend_cuda.expert_gated(device, &gated), &err);
        must("linear beside", backend_cuda.linear(device, &shared), &err);
        must("expert_output", backend_cuda.expert_output(device, &output), &err);
        finish(k->name);
    }
    backend_cuda.weight_free(device, w), backend_cuda.weight_free(device, v), backend_cuda.weight_free(device, down), backend_cuda.weight_free(device, beside), backend_cuda.weight_free(device, router);
}

static void attention(enum kv_format f, uint32_t heads, uint32_t kv_heads, uint32_t d, bool latent)
{
    static const uint32_t rows[] = {1, 2, 31, 64, 200, 4096, ROWS_MAX};
    struct err err = {0};
    uint32_t d_v = latent ? d - 64 : d;
    struct kv_layer layer = {.k_format = f, .v_format = f, .n_kv_heads = kv_heads, .d_k = d, .d_v = d_v, .latent = latent, .pages = (void *)floats()};
    layer.head_bytes = kv_layer_head_bytes(&layer);
    if (!layer.head_bytes || !backend_cuda.kv_format_supported(device, &layer))
        return;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int each = 0; each < 2; each++) {
            uint32_t n = rows[i], spans = each ? n : 1;
            const struct kv_span *at = (void *)floats();
            const uint32_t *tables = (void *)floats();
            struct tensor q = tensor(n, heads * d), k = tensor(n, kv_heads * d), v = latent ? (struct tensor){0} : tensor(n, kv_heads * d_v);
            struct op_attn_prepare prepare = {.q = q, .k = k, .v = v, .n_heads = heads, .head_dim = d, .q_norm = floats(), .table = tensor(n, d), .layer = &layer,
                                              .spans = at, .span_count = spans, .tables = tables};
            struct op_attention attend = {.q = q, .y = tensor(n, heads * d_v), .n_heads = heads, .layer = &layer, .spans = at, .span_count = spans,
                                          .tables = tables, .scale = 1, .softcap = d == 96 ? 30 : 0};
            must("attn_prepare", backend_cuda.attn_prepare(device, &prepare), &err);
            must("attention", backend_cuda.attention(device, &attend), &err);
            finish("attention");
        }
    struct op_kv_convert convert = {.from = &layer, .to = &layer, .page_count = KV_CONVERT_PAGES, .positions_last = 5};
    must("kv_convert", backend_cuda.kv_convert(device, &convert), &err);
    finish("kv_convert");
}

static void samples(uint32_t rows, uint32_t vocab)
{
    static const struct sample_params params = {.temperature = 1, .top_k = 40};
    static struct sample_result results[256];
    static struct sample_row row[256];
    struct err err = {0};
    for (uint32_t r = 0; r < rows; r++)
        row[r] = (struct sample_row){.params = &params, .score_id = -1, .top = 4};
    struct op_sample_rows op = {.logits = tensor(rows, vocab), .rows = row, .results = results, .vocab = vocab};
    must("sample_rows", backend_cuda.sample_rows(device, &op), &err);
    finish("sample_rows");
}

static void all_on(int capability)
{
    static struct random_kind kinds[96];
    struct device_reserve reserve = {.rows_max = ROWS_MAX, .cols_max = COLS_MAX, .heads_max = 128, .head_dim_max = 576, .context_max = 1 << 20, .logit_rows_max = 256,
                                     .vocab_max = OUT_MAX, .state_dim_max = 256, .experts_max = EXPERTS_MAX, .slots_max = TOP_MAX, .expert_cols_max = EXPERT_COLS, .away_mib_max = 512};
    struct device_config cfg = {.n_threads = 1};
    struct err err = {0};
    fake_gpu_set(capability);
    must("open", backend_cuda.device_open(&cfg, &device, &err), &err);
    if (backend_cuda.reserve(device, &reserve, &err)) { /* such a row is not packed here */
        reserve.cols_max = 16384, err = (struct err){0};
        must("reserve", backend_cuda.reserve(device, &reserve, &err), &err);
    }
    size_t n = random_kinds(kinds, sizeof kinds / sizeof *kinds);
    for (size_t i = 0; i < n; i++) {
        bool common = kinds[i].type == DTYPE_Q4_K || kinds[i].type == DTYPE_Q6_K || kinds[i].type == DTYPE_Q8_0 || kinds[i].type == DTYPE_BF16;
        linears(&kinds[i], i % 2 ? 70 : 129, i % 3 == 0 ? 2304 : i % 3 == 1 ? 256 : 1280, i % 5 == 0 ? WEIGHT_AWAY : 0);
        heads(&kinds[i], 1280);
        experts(&kinds[i], &kinds[(i + 3) % n], 7, 3, 512, 256);
        if (common)
            linears(&kinds[i], 1100, 2048, 0), linears(&kinds[i], OUT_MAX, 256, 0), linears(&kinds[i], 128, reserve.cols_max, 0);
    }
    linears(&bf16, 5, 100, 0), linears(&bf16, 16, 16640, 0);
    for (uint32_t rows = 1; rows <= ROWS_MAX; rows *= 16)
        rows_of(&q8, rows, 1024), rows_of(&bf16, rows, 5);
    experts(&q8, &q8, 128, 8, 2816, 704), experts(&bf16, &q8, 8, 8, 512, 256), experts(&bf16, &bf16, 512, 1, 1280, 70), experts(&q8, &q8, 4, 2, 7168, 64);
    static const uint32_t shapes[][3] = {{8, 2, 64}, {32, 8, 128}, {6, 2, 80}, {4, 1, 96}, {4, 4, 16}, {16, 8, 256}, {16, 2, 512}, {128, 1, 128}};
    for (int f = 0; f < KV_FORMAT_COUNT; f++) {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            attention((enum kv_format)f, shapes[i][0], shapes[i][1], shapes[i][2], false);
        attention((enum kv_format)f, 128, 1, 576, true);
    }
    recurrent(1, 1), recurrent(ROWS_MAX, 1), recurrent(ROWS_MAX, 256), recurrent(300, 300);
    copies();
    samples(1, OUT_MAX), samples(256, OUT_MAX), samples(3, 5);
    backend_cuda.device_close(device);
}

int main(void)
{
    zeros = mmap(NULL, 2 * ROOM, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (zeros == MAP_FAILED)
        return 1;
    static const int capabilities[] = {90, 89, 80};
    for (size_t i = 0; i < sizeof capabilities / sizeof *capabilities; i++)
        all_on(capabilities[i]);
    printf("%zu launches of %zu ops, %zu graphs\n%zu passed, %zu failed\n", fake_launches(), ops, fake_graphs(), fake_launches() - fake_breaches(), fake_breaches());
    return fake_breaches() != 0;
}
