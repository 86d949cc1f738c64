/* hub/curl.h - libcurl, loaded when something is first pulled: with it come some thirty libraries, whose loading would cost every
 * other start of the program about ten milliseconds. */
#ifndef RH_HUB_CURL_H
#define RH_HUB_CURL_H

#include "base/err.h"

#include <curl/curl.h>

#define HUB_CURL_LIST(X)                                                                                              \
    X(global_init) X(easy_init) X(easy_setopt) X(easy_getinfo) X(easy_perform) X(easy_strerror) X(easy_cleanup)       \
    X(slist_append) X(slist_free_all) X(multi_init) X(multi_add_handle) X(multi_remove_handle) X(multi_perform)       \
    X(multi_poll) X(multi_info_read) X(multi_cleanup)

struct hub_curl {
#define HUB_CURL_FIELD(name) __typeof__(curl_##name) *name;
    HUB_CURL_LIST(HUB_CURL_FIELD)
#undef HUB_CURL_FIELD
};

/* curl.c: process lifetime; set once, by the first hub_curl_load that succeeds. */
extern struct hub_curl hub_curl;
int hub_curl_load(struct err *err); /* ERR_UNSUPPORTED naming the library; any thread */

#endif
