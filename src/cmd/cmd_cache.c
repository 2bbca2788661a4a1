/*
 * firn cache: a table of subcommands. Each is a firni_command of its own, with its own flags and help: see
 * cache_view.h.
 */
#include <stdio.h>
#include <string.h>

#include "cmd/cache_view.h"

/* In the order of --help. */
static const firni_command *const verbs[] = {
    &firni_cache_stat,
    &firni_cache_ls,
    &firni_cache_verify,
    &firni_cache_fsck,
    &firni_cache_explain,
    &firni_cache_prune,
    &firni_cache_pin,
    &firni_cache_unpin,
    &firni_cache_export,
    &firni_cache_import,
    &firni_cache_wipe,
    &firni_cache_replay,
};

#define N_VERBS (sizeof verbs / sizeof verbs[0])

/* The subcommand's own word: its name without "cache ". */
static const char *word_of(const firni_command *verb)
{
    return verb->name + sizeof "cache";
}

/* "stat, ls, ... or wipe" */
static void list_words(char *out, size_t out_bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < N_VERBS && n < out_bytes; i++) {
        const int len = snprintf(out + n, out_bytes - n, "%s%s", i == 0 ? "" : i + 1 < N_VERBS ? ", " : " or ",
                                 word_of(verbs[i]));
        n += len > 0 ? (size_t)len : 0;
    }
}

/* The overview's paragraphs depend on the table, so they are printed here and not kept as a text. */
static void print_verbs(void)
{
    (void)printf("\nSubcommands:\n");
    for (size_t i = 0; i < N_VERBS; i++) {
        (void)printf("  %-10s %s\n", word_of(verbs[i]), verbs[i]->summary);
    }
    (void)printf("\nfirn cache SUBCOMMAND --help explains one. Those that only look may be used while a server runs.\n"
                 "What a drafter (--draft MODEL) has read is a store of its own in DIR/draft: it follows, as a second\n"
                 "document with --json.\n");
}

static int run(const firni_command *self, int argc, char **argv)
{
    for (size_t i = 0; argc > 0 && i < N_VERBS; i++) {
        if (strcmp(argv[0], word_of(verbs[i])) == 0) {
            return verbs[i]->run(verbs[i], argc - 1, argv + 1);
        }
    }
    if (argc > 0 && argv[0][0] == '-') {
        bool done = false; /* --help, or what is no flag here */
        const int status = firni_flags_parse(self, NULL, 0, 1, argv, NULL, 0, NULL, &done);
        if (done && status == 0) {
            print_verbs();
        }
        if (done) {
            return status;
        }
    }
    char words[256];
    list_words(words, sizeof words);
    return argc > 0 ? firni_cmd_usage(self, "unknown subcommand \"%s\": say %s", argv[0], words)
                    : firni_cmd_usage(self, "say what to do: %s", words);
}

const firni_command firni_cmd_cache = {
    .name = "cache",
    .summary = "look into a cache directory, keep it in order, or empty it",
    .synopsis = "cache SUBCOMMAND [flags]",
    .run = run,
};
