/* Fuzz: hyper-parameters.  The input is a model directory's config.json; beside it lies a safetensors file with a few small tensors, so a
 * config that is read whole ends in a bind error, or in a plan.  Nothing is computed: backend trace has no weights.  What is at stake is
 * arithmetic on numbers of the file: counts, divisions, sizes. */
#include "backend_trace/backend_trace.h"
#include "base/file.h"
#include "models/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[64], config_path[128], tensors_path[128];
static struct device *device;

static void clean(void)
{
    backend_trace.device_close(device);
    unlink(config_path);
    unlink(tensors_path);
    rmdir(dir);
}

static void put(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(p, 1, n, f) != n || fclose(f))
        abort();
}

static void start(void)
{
    static const char header[] = "{\"model.embed_tokens.weight\":{\"dtype\":\"F32\",\"shape\":[8,8],\"data_offsets\":[0,256]},"
                                 "\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[256,288]}}";
    static unsigned char file[8 + sizeof header - 1 + 288];
    struct device_config cfg = {0};
    uint64_t n = sizeof header - 1;
    memcpy(file, &n, 8);
    memcpy(file + 8, header, n);
    snprintf(dir, sizeof dir, "%s/fuzz-config-XXXXXX", file_is_dir("/dev/shm") ? "/dev/shm" : "/tmp");
    if (!mkdtemp(dir) || backend_trace.device_open(&cfg, &device, NULL))
        abort();
    snprintf(config_path, sizeof config_path, "%s/config.json", dir);
    snprintf(tensors_path, sizeof tensors_path, "%s/model.safetensors", dir);
    put(tensors_path, file, sizeof file);
    atexit(clean);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct model_options opt = {.k_format = KV_F16, .v_format = KV_F16, .rows_max = 8, .logit_rows_max = 2};
    struct model *m = NULL;
    struct err err = {0};
    if (!dir[0])
        start();
    put(config_path, data, n);
    if (model_inspect(dir, device, &opt, &m, &err) == 0)
        model_close(m);
    else if (!err.code || !err.text[0])
        abort();
    return 0;
}
