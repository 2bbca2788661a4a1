/*
 * The `firn` program: finds the subcommand and runs it. One file per subcommand; see cmd.h.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cmd/cmd.h"

#define FIRN_VERSION "0.1.0"

/* In the order of --help: what people come for first. */
static const firni_command *const commands[] = {
    &firni_cmd_serve,      &firni_cmd_run,   &firni_cmd_cache, &firni_cmd_tokenize, &firni_cmd_logits,
    &firni_cmd_perplexity, &firni_cmd_bench, &firni_cmd_synth,
};

#define N_COMMANDS (sizeof commands / sizeof commands[0])

static void print_overview(FILE *out)
{
    (void)fprintf(out, "Firn keeps what a language model has already read.\n\n"
                       "Usage: firn COMMAND [flags]\n\nCommands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        (void)fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    }
    (void)fprintf(out, "\nfirn COMMAND --help explains a command. firn --version prints the version.\n");
}

static const firni_command *find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i]->name, name) == 0) {
            return commands[i];
        }
    }
    return NULL;
}

/* Output that never reached its file (a full disk, a closed pipe) is a failure too. */
static int finish(int status)
{
    if ((fflush(stdout) != 0 || ferror(stdout) != 0) && status == 0) {
        (void)fprintf(stderr, "firn: cannot write the output: %s\n", strerror(errno));
        return 1;
    }
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_overview(stderr);
        return 2;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_overview(stdout);
        return finish(0);
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "version") == 0) {
        (void)printf("firn " FIRN_VERSION "\n");
        return finish(0);
    }
    const firni_command *command = find_command(name);
    if (command == NULL) {
        (void)fprintf(stderr, "firn: unknown command \"%s\"\n\n", name);
        print_overview(stderr);
        return 2;
    }
    return finish(command->run(command, argc - 2, argv + 2));
}
