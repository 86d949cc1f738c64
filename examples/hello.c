/* hello.c - the smallest use of the library: open a model, ask one thing, print the answer as it comes.
 *
 *     cc hello.c $(pkg-config --cflags --libs rhapsode) -o hello && ./hello model.gguf "Once upon a time" */
#include <rhapsode.h>

#include <stdio.h>
#include <string.h>

static int fail(const struct rh_error *err)
{
    fprintf(stderr, "hello: %s\n", err->text);
    return 1;
}

int main(int argc, char **argv)
{
    struct rh_error err = {0};
    struct rh_host *host = NULL;
    struct rh_model *model = NULL;
    struct rh_request *request = NULL;
    struct rh_event event;
    if (argc != 3) {
        fprintf(stderr, "usage: hello MODEL PROMPT\n");
        return 2;
    }
    if (rh_host_open(&(struct rh_host_options){0}, &host, &err))
        return fail(&err);
    if (rh_model_open(host, argv[1], &(struct rh_model_options){0}, &model, &err)) {
        rh_host_close(host);
        return fail(&err);
    }
    struct rh_request_options ask = {.prompt = {argv[2], strlen(argv[2])}, .max_tokens = 48, .seed_given = true, .seed = 1};
    int status = rh_submit(model, &ask, &request, &err) ? fail(&err) : 0;
    while (request && rh_poll(request, &event, -1) == 1) {
        if (event.kind == RH_EVENT_TEXT)
            fwrite(event.text, 1, event.text_n, stdout);
        else if (event.kind == RH_EVENT_DONE && event.finish == RH_FINISH_ERROR)
            status = fail(&event.error);
        else if (event.kind == RH_EVENT_DONE)
            printf("\n[%u + %u tokens, %.1f tokens/s]\n", event.usage.prompt_tokens, event.usage.completion_tokens,
                   event.timings.decode_tokens_per_s);
    }
    rh_request_free(request);
    rh_model_close(model);
    rh_host_close(host);
    return status;
}
