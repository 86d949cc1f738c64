/* chat/jinja_filters.h - the functions behind filters, for the one table in jinja_filter.c.
 *
 * Each gets the piped value and its bound arguments (JT_MISSING: not given), or the raw arguments when their number is free. */
#ifndef RH_CHAT_JINJA_FILTERS_H
#define RH_CHAT_JINJA_FILTERS_H

#include "chat/jinja_int.h"

#define JFILTER(name) struct jv jfilter_##name(struct jx *jx, struct jv v, struct jv *a)
#define JFILTER_RAW(name) struct jv jfilter_##name(struct jx *jx, struct jv v, const struct jargs *args)

/* jinja_filter_text.c */
JFILTER(upper);
JFILTER(lower);
JFILTER(capitalize);
JFILTER(title);
JFILTER(trim);
JFILTER(replace);
JFILTER(indent);
JFILTER(truncate);
JFILTER(wordcount);
JFILTER(center);
JFILTER(escape);
JFILTER(forceescape);
JFILTER(safe);
JFILTER(string);
JFILTER(urlencode);
JFILTER(tojson);
JFILTER_RAW(format);

/* jinja_filter_number.c */
JFILTER(int);
JFILTER(float);
JFILTER(abs);
JFILTER(round);
JFILTER(filesizeformat);

/* jinja_filter_seq.c */
JFILTER(length);
JFILTER(list);
JFILTER(first);
JFILTER(last);
JFILTER(reverse);
JFILTER(join);
JFILTER(items);
JFILTER(default);
JFILTER(attr);
JFILTER(batch);
JFILTER(slice);
JFILTER(sum);
JFILTER_RAW(map);
JFILTER_RAW(select);
JFILTER_RAW(reject);
JFILTER_RAW(selectattr);
JFILTER_RAW(rejectattr);

/* jinja_filter_order.c */
JFILTER(sort);
JFILTER(unique);
JFILTER(dictsort);
JFILTER(min);
JFILTER(max);
JFILTER(groupby);

#endif
