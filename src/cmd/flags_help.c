/*
 * --help of a command, from its entry in the command table and its flags. Owns no state.
 */
#include <string.h>

#include "cmd/flags_impl.h"

/* Column where help texts start; a longer flag puts its help on the next line. */
#define HELP_COLUMN 30

/* "  -p, --port PORT    where to listen (1..65535; default 8080)": what is allowed and what holds when nothing is said
 * come from the table, so that help cannot disagree with the parser. */
static void print_flag(const firni_flag *flag, FILE *out)
{
    char head[96];
    char letter[8] = "    ";
    if (flag->letter != 0) {
        (void)snprintf(letter, sizeof letter, "-%c, ", flag->letter);
    }
    const bool has_value = flag->kind != FIRNI_FLAG_BOOL;
    (void)snprintf(head, sizeof head, "  %s--%s%s%s", letter, flag->name, has_value ? " " : "",
                   !has_value ? "" : flag->value_name != NULL ? flag->value_name : "VALUE");
    if (strlen(head) < HELP_COLUMN) {
        (void)fprintf(out, "%-*s%s", HELP_COLUMN, head, flag->help);
    } else {
        (void)fprintf(out, "%s\n%*s%s", head, HELP_COLUMN, "", flag->help);
    }
    char allowed[200], value[200];
    firni_flag_allowed_text(flag, allowed, sizeof allowed);
    firni_flag_value_text(flag, value, sizeof value);
    if (allowed[0] != '\0' && value[0] != '\0') {
        (void)fprintf(out, " (%s; default %s)", allowed, value);
    } else if (allowed[0] != '\0' || value[0] != '\0') {
        (void)fprintf(out, " (%s%s)", allowed[0] != '\0' ? allowed : "default ", value);
    }
    (void)fputc('\n', out);
}

void firni_flags_print_help(const firni_command *command, const firni_flag *flags, uint32_t n_flags, FILE *out)
{
    (void)fprintf(out, "%s\n\nUsage: firn %s\n", command->summary, command->synopsis);
    if (n_flags > 0) {
        (void)fprintf(out, "\nFlags:\n");
    }
    for (uint32_t i = 0; i < n_flags; i++) {
        print_flag(&flags[i], out);
    }
    (void)fprintf(out, "%s  %-*s%s\n", n_flags > 0 ? "" : "\nFlags:\n", HELP_COLUMN - 2, "-h, --help",
                  "show this text");
    if (command->details != NULL) {
        (void)fprintf(out, "\n%s\n", command->details);
    }
}
