/*
 * Walks argv: what is a flag, its value, or a positional word. Values, help and config files are their own files.
 *
 * Two passes over the same walk: the first looks for --help and --config and finds misspelt flags, the second sets
 * targets. Thus --help shows untouched defaults wherever it stands, and the command line wins over the file.
 */
#include <assert.h>
#include <string.h>

#include "cmd/flags_impl.h"

/* What one or two words of argv mean. */
typedef enum word_kind { WORD_END, WORD_FLAG, WORD_POSITIONAL, WORD_HELP, WORD_BAD } word_kind;

typedef struct word {
    word_kind kind;
    const firni_flag *flag;
    const char *value;      /* of a flag, or the positional word */
    char message[400];      /* WORD_BAD */
} word;

/* A position in argv. Passed by value where a pass starts over. */
typedef struct walk {
    const firni_flag *flags;
    uint32_t n_flags;
    int argc;
    char **argv;
    int next;
    bool only_positional;   /* after "--" */
} walk;

const firni_flag *firni_flags_find(const firni_flag *flags, uint32_t n_flags, const char *name, size_t len_name)
{
    for (uint32_t i = 0; i < n_flags; i++) {
        if (strlen(flags[i].name) == len_name && memcmp(flags[i].name, name, len_name) == 0) {
            return &flags[i];
        }
    }
    return NULL;
}

static const firni_flag *find_letter(const walk *w, char letter)
{
    for (uint32_t i = 0; i < w->n_flags; i++) {
        if (w->flags[i].letter == letter && letter != 0) {
            return &w->flags[i];
        }
    }
    return NULL;
}

/* Completes a flag's word: its value is what follows "=", else the next word; a bool without "=" is true. */
static word with_value(walk *w, const firni_flag *flag, const char *attached)
{
    word out = { .kind = WORD_FLAG, .flag = flag, .value = attached };
    if (attached == NULL && flag->kind == FIRNI_FLAG_BOOL) {
        out.value = "true";
    } else if (attached == NULL && w->next < w->argc) {
        out.value = w->argv[w->next++];
    } else if (attached == NULL) {
        out.kind = WORD_BAD;
        (void)snprintf(out.message, sizeof out.message, "--%s needs a value (%s)", flag->name,
                       flag->value_name != NULL ? flag->value_name : "VALUE");
    }
    return out;
}

/* Letters are not bundled ("-vp"): a misspelt long flag with one dash would silently become several short ones. */
static word next_word(walk *w)
{
    if (w->next < w->argc && !w->only_positional && strcmp(w->argv[w->next], "--") == 0) {
        w->only_positional = true;
        w->next++;
    }
    if (w->next >= w->argc) {
        return (word){ .kind = WORD_END };
    }
    const char *text = w->argv[w->next++];
    /* "-" alone is a word of its own: standard input. */
    if (w->only_positional || text[0] != '-' || text[1] == '\0') {
        return (word){ .kind = WORD_POSITIONAL, .value = text };
    }
    const firni_flag *flag = NULL;
    const char *attached = NULL;
    if (text[1] == '-') {
        const char *name = text + 2;
        const char *equals = strchr(name, '=');
        flag = firni_flags_find(w->flags, w->n_flags, name, equals != NULL ? (size_t)(equals - name) : strlen(name));
        attached = equals != NULL ? equals + 1 : NULL;
    } else if (text[2] == '\0') {
        flag = find_letter(w, text[1]);
    }
    if (flag != NULL) {
        return with_value(w, flag, attached);
    }
    if (strcmp(text, "--help") == 0 || strcmp(text, "-h") == 0) {
        return (word){ .kind = WORD_HELP };
    }
    word bad = { .kind = WORD_BAD };
    (void)snprintf(bad.message, sizeof bad.message, "unknown flag %s", text);
    return bad;
}

static walk walk_begin(const firni_flag *flags, uint32_t n_flags, int argc, char **argv)
{
    return (walk){ .flags = flags, .n_flags = n_flags, .argc = argc, .argv = argv };
}

/* The second pass: the words are known to be well-formed, the values are not. */
static int set_targets(const firni_command *command, walk w, const char **positional, uint32_t n_positional_max,
                       uint32_t *n_positional)
{
    for (word one = next_word(&w); one.kind != WORD_END; one = next_word(&w)) {
        if (one.kind == WORD_POSITIONAL) {
            if (*n_positional == n_positional_max) {
                return firni_cmd_usage(command, "unexpected word \"%s\"", one.value);
            }
            positional[(*n_positional)++] = one.value;
        } else if (!firni_flag_set(one.flag, one.value, one.message, sizeof one.message)) {
            return firni_cmd_usage(command, "%s", one.message);
        }
    }
    return 0;
}

int firni_flags_parse(const firni_command *command, const firni_flag *flags, uint32_t n_flags, int argc, char **argv,
                      const char **positional, uint32_t n_positional_max, uint32_t *n_positional, bool *done)
{
    assert(n_positional_max == 0 || positional != NULL);
    uint32_t n_found = 0;
    const char *config_path = NULL;
    *done = true;
    walk w = walk_begin(flags, n_flags, argc, argv);
    for (word one = next_word(&w); one.kind != WORD_END; one = next_word(&w)) {
        if (one.kind == WORD_HELP) {
            firni_flags_print_help(command, flags, n_flags, stdout);
            return 0;
        }
        if (one.kind == WORD_BAD) {
            return firni_cmd_usage(command, "%s", one.message);
        }
        if (one.kind == WORD_FLAG && strcmp(one.flag->name, "config") == 0) {
            config_path = one.value;
        }
    }
    int status = config_path != NULL ? firni_flags_read_config(command, flags, n_flags, config_path) : 0;
    if (status == 0) {
        status = set_targets(command, walk_begin(flags, n_flags, argc, argv), positional, n_positional_max, &n_found);
    }
    if (n_positional != NULL) {
        *n_positional = n_found;
    }
    *done = status != 0;
    return status;
}
