/* cli/line.c - see line.h. */
#include "cli/line.h"

#include "base/mem.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { HISTORY_MAX = 1000, PASTES_MAX = 16, PASTE_BYTES_MAX = 8 << 20, INPUT_BYTES_MAX = 64 << 20 };

struct line_editor { /* process lifetime */
    EditLine *el;
    History *history;
    const char *history_path;
    const char *prompt;
    struct buf pastes[PASTES_MAX]; /* of the line being edited */
    size_t paste_count;
    bool interrupted;
};

static volatile sig_atomic_t got_interrupt;

static void on_interrupt(int sig)
{
    (void)sig;
    got_interrupt = 1;
}

static char *prompt_of(EditLine *el)
{
    struct line_editor *l = NULL;
    el_get(el, EL_CLIENTDATA, &l);
    return (char *)(uintptr_t)l->prompt;
}

/* Called at ESC[200~: everything up to ESC[201~ is one paste. */
static unsigned char on_paste(EditLine *el, int ch)
{
    (void)ch;
    static const char end[] = "\033[201~";
    struct line_editor *l = NULL;
    el_get(el, EL_CLIENTDATA, &l);
    struct buf text = {.max = PASTE_BYTES_MAX};
    char c;
    while (el_getc(el, &c) == 1) {
        buf_char(&text, c == '\r' ? '\n' : c);
        if (str_ends(buf_view(&text), STR("\033[201~"))) {
            text.n -= sizeof end - 1;
            break;
        }
    }
    if (text.n && !memchr(text.p, '\n', text.n)) {
        el_insertstr(el, buf_cstr(&text));
        buf_free(&text);
        return CC_REFRESH;
    }
    if (text.failed || !text.n || l->paste_count == PASTES_MAX) {
        buf_free(&text);
        return CC_REFRESH_BEEP;
    }
    size_t lines = 1;
    for (size_t i = 0; i + 1 < text.n; i++)
        lines += text.p[i] == '\n';
    char mark[64];
    l->pastes[l->paste_count++] = text;
    snprintf(mark, sizeof mark, "[paste %zu: %zu lines]", l->paste_count, lines);
    el_insertstr(el, mark);
    return CC_REFRESH;
}

static int open_editor(struct line_editor *l)
{
    HistEvent ev;
    /* characters are the terminal's: without a locale of UTF-8 the editor drops every byte past ASCII */
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
    l->el = el_init("rhapsode", stdin, stdout, stderr);
    l->history = history_init();
    if (!l->el || !l->history)
        return -1;
    el_set(l->el, EL_CLIENTDATA, l);
    el_set(l->el, EL_PROMPT, prompt_of);
    el_set(l->el, EL_EDITOR, "emacs");
    el_set(l->el, EL_SIGNAL, 0);
    el_set(l->el, EL_HIST, history, l->history);
    el_set(l->el, EL_ADDFN, "rh-paste", "insert pasted text", on_paste);
    el_set(l->el, EL_BIND, "\\e[200~", "rh-paste", NULL);
    el_set(l->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(l->el, EL_BIND, "\\e[1;5C", "em-next-word", NULL);
    el_set(l->el, EL_BIND, "\\e[1;5D", "ed-prev-word", NULL);
    history(l->history, &ev, H_SETSIZE, HISTORY_MAX);
    history(l->history, &ev, H_SETUNIQUE, 1);
    if (l->history_path)
        history(l->history, &ev, H_LOAD, l->history_path);
    return 0;
}

struct line_editor *line_open(const char *history_path)
{
    struct line_editor *l = mem_alloc(sizeof *l);
    *l = (struct line_editor){.history_path = history_path, .prompt = "> "};
    if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && open_editor(l))
        mem_exhausted(sizeof *l);
    return l;
}

static void drop_pastes(struct line_editor *l)
{
    while (l->paste_count)
        buf_free(&l->pastes[--l->paste_count]);
}

void line_close(struct line_editor *l)
{
    HistEvent ev;
    if (l->history && l->history_path)
        history(l->history, &ev, H_SAVE, l->history_path);
    if (l->history)
        history_end(l->history);
    if (l->el)
        el_end(l->el);
    drop_pastes(l);
    mem_free(l);
}

/* Put pasted texts back where their markers stand. */
static void expand(const struct line_editor *l, struct str line, struct buf *out)
{
    for (size_t i = 0; i < l->paste_count; i++) {
        char mark[32];
        snprintf(mark, sizeof mark, "[paste %zu: ", i + 1);
        size_t at = str_find(line, str_of(mark)), end = at == SIZE_MAX ? SIZE_MAX : str_find(str_from(line, at), STR("]"));
        if (end == SIZE_MAX)
            continue; /* the marker was edited away */
        buf_put(out, line.p, at);
        buf_str(out, buf_view(&l->pastes[i]));
        line = str_from(line, at + end + 1);
    }
    buf_str(out, line);
}

static enum line_result read_plain(struct buf *out)
{
    for (bool any = false;;) {
        char block[4096];
        if (!fgets(block, sizeof block, stdin))
            return any ? LINE_TEXT : errno == EINTR && got_interrupt ? LINE_INTERRUPT : LINE_END;
        any = true;
        size_t n = strlen(block);
        bool whole = n && block[n - 1] == '\n';
        buf_put(out, block, n - whole);
        if (whole)
            return LINE_TEXT;
    }
}

static enum line_result read_edited(struct line_editor *l, struct buf *out)
{
    struct sigaction sa = {.sa_handler = on_interrupt}, old;
    sigaction(SIGINT, &sa, &old); /* no SA_RESTART: el_gets returns */
    fputs("\033[?2004h", stdout);
    fflush(stdout);
    int n = 0;
    const char *text = el_gets(l->el, &n);
    fputs("\033[?2004l", stdout);
    fflush(stdout);
    sigaction(SIGINT, &old, NULL);
    if (got_interrupt) {
        el_reset(l->el);
        drop_pastes(l);
        fputc('\n', stdout);
        return LINE_INTERRUPT;
    }
    if (!text || n <= 0)
        return LINE_END;
    struct str line = str_n(text, (size_t)n);
    if (line.p[line.n - 1] == '\n')
        line.n--;
    HistEvent ev;
    if (str_trim(line).n)
        history(l->history, &ev, H_ENTER, text);
    expand(l, line, out);
    drop_pastes(l);
    return LINE_TEXT;
}

enum line_result line_read(struct line_editor *l, struct buf *out)
{
    enum line_result r = LINE_TEXT;
    bool quoted = false, more = true;
    out->n = 0;
    out->max = INPUT_BYTES_MAX;
    got_interrupt = 0;
    for (size_t lines = 0; more && r == LINE_TEXT; lines++) {
        l->prompt = lines ? "| " : "> ";
        size_t start = out->n;
        r = l->el ? read_edited(l, out) : read_plain(out);
        if (r != LINE_TEXT)
            break;
        struct str line = str_from(buf_view(out), start);
        if (lines == 0 && str_starts(str_trim(line), STR("\"\"\""))) {
            struct str t = str_from(str_trim(line), 3);
            quoted = !str_ends(t, STR("\"\"\""));
            t.n -= quoted ? 0 : 3;
            memmove(out->p, t.p, t.n);
            out->n = t.n;
            more = quoted;
        } else if (quoted) {
            more = !str_ends(str_trim(line), STR("\"\"\""));
            while (!more && out->n && out->p[out->n - 1] != '"')
                out->n--;
            out->n -= more ? 0 : 3;
        } else {
            more = line.n && line.p[line.n - 1] == '\\';
            out->n -= more;
        }
        if (more)
            buf_char(out, '\n');
    }
    return r;
}
