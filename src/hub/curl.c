/* hub/curl.c - see curl.h.  The library stays loaded until the process ends. */
#include "hub/curl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

struct hub_curl hub_curl;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char failure[512];

static void load(void)
{
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl.so"};
    void *lib = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !lib; i++) {
        lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (!lib && i == 0)
            snprintf(failure, sizeof failure, "%s", dlerror());
    }
    if (!lib)
        return;
    failure[0] = 0;
    static const char *const symbols[] = {
#define HUB_CURL_NAME(name) "curl_" #name,
        HUB_CURL_LIST(HUB_CURL_NAME)
#undef HUB_CURL_NAME
    };
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *p = dlsym(lib, symbols[i]);
        if (!p) {
            snprintf(failure, sizeof failure, "libcurl has no %s", symbols[i]);
            return;
        }
        ((void **)(void *)&hub_curl)[i] = p;
    }
    hub_curl.global_init(CURL_GLOBAL_DEFAULT);
}

int hub_curl_load(struct err *err)
{
    pthread_once(&once, load);
    return failure[0] ? err_set(err, ERR_UNSUPPORTED, "pulling needs libcurl: %s", failure) : 0;
}
