#!/bin/sh
# The program from outside: help, wrong usage, exit statuses, run, cache, bench. FIRN_OUT is the build folder.
set -u
cd "$(dirname "$0")/../.." || exit 1
firn=${FIRN_OUT:-$PWD/build}/firn
FIRN_MODEL=$PWD/models/firn-tiny-q8_0.gguf
export FIRN_MODEL
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
XDG_CACHE_HOME=$dir/xdg # nothing here may touch the user's cache
export XDG_CACHE_HOME
n_bad=0

# check NAME CONDITION...: one test.
check() {
    name=$1
    shift
    if "$@"; then
        echo "ok - $name"
    else
        echo "not ok - $name"
        n_bad=$((n_bad + 1))
        for file in "$dir/out" "$dir/err"; do
            sed "s|^|# ${file##*/}: |" "$file" 2>/dev/null | head -n 12
        done
    fi
}

# call ARGS...: runs the program; $status, $dir/out and $dir/err are what it left. Not a terminal on any side.
call() {
    "$firn" "$@" >"$dir/out" 2>"$dir/err" </dev/null
    status=$?
}
exits() { [ "$status" -eq "$1" ]; }
out_has() { grep -qE -- "$1" "$dir/out"; }
err_has() { grep -qE -- "$1" "$dir/err"; }
commands='serve run cache tokenize logits perplexity bench synth'

# ---- help and wrong usage ----

all_listed() {
    for command in $commands; do
        out_has "^  $command " || return 1
    done
    exits 0
}
call --help
check 'firn --help lists every command' all_listed
call --version
check 'firn --version prints a version' out_has '^firn [0-9]+\.[0-9]+\.[0-9]+$'

explains() { exits 0 && out_has "^Usage: firn $1 " && out_has '--help' && [ ! -s "$dir/err" ]; }
refuses() { exits 2 && err_has "^firn $1: unknown flag --no-such-flag" && err_has "^Try: firn $1 --help" && [ ! -s "$dir/out" ]; }
for command in $commands; do
    call "$command" --help
    check "firn $command --help explains" explains "$command"
    call "$command" --no-such-flag
    check "firn $command refuses an unknown flag with status 2" refuses "$command"
done

lists_on_stderr() { exits 2 && err_has "$1" && err_has '^  serve ' && [ ! -s "$dir/out" ]; }
call
check 'no command is wrong usage and shows the list' lists_on_stderr '^Usage: firn COMMAND'
call brew coffee
check 'an unknown command is wrong usage and shows the list' lists_on_stderr 'unknown command "brew"'

usage_says() { exits 2 && err_has "$1"; }
call run
check 'run without a prompt is wrong usage' usage_says 'a prompt is missing'
call run one two
check 'run with two prompts is wrong usage' usage_says 'unexpected word "two"'
call run --temp 11 x
check 'a flag out of range names the range' usage_says '--temp: "11" is not in the allowed range \(0\.\.10\)'
call bench --batch 1,,4
check 'a malformed batch list is wrong usage' usage_says '--batch: "1,,4"'
call cache
check 'cache without a verb is wrong usage' usage_says 'say what to do: stat, ls, .*wipe'
call cache mop
check 'an unknown subcommand of cache is wrong usage' usage_says 'unknown subcommand "mop": say stat, ls, '
call cache ls --help
check 'each subcommand of cache has its own help' out_has '^Usage: firn cache ls '

one_line() { exits 1 && [ "$(wc -l <"$dir/err")" -eq 1 ] && err_has "$1" && [ ! -s "$dir/out" ]; }
call run --no-disk -m "$dir/none.gguf" x
check 'a missing model is one line and status 1' one_line '^firn run: .*none\.gguf'
call bench -m "$dir/none.gguf"
check 'a missing model fails bench too' one_line '^firn bench: .*none\.gguf'
printf 'not a model' >"$dir/junk.gguf"
call run --no-disk -m "$dir/junk.gguf" x
check 'a file that is no model is one line and status 1' one_line '^firn run: '

# ---- run ----

last_line='^[0-9]+ prompt tokens, [0-9]+ cached \(ram [0-9]+, disk [0-9]+\); first token after [0-9.]+ s; [0-9]+ tokens at [0-9.]+ tokens/s$'
answers() { exits 0 && [ -s "$dir/out" ] && [ "$(wc -l <"$dir/err")" -eq 1 ] && err_has "$last_line"; }
quiet_pipe() { ! LC_ALL=C grep -q "$(printf '[\r\033]')" "$dir/out" "$dir/err"; }
call run --no-disk --seed 7 -n 24 'My dear sister,'
check 'run on the built-in model prints text and the last line' answers
check 'a pipe sees no progress and no control characters' quiet_pipe
cp "$dir/out" "$dir/seed7"
call run --no-disk --seed 7 -n 24 'My dear sister,'
check 'the same seed gives the same text' cmp -s "$dir/out" "$dir/seed7"
call run --no-disk --seed 8 -n 24 'My dear sister,'
differs() { ! cmp -s "$dir/out" "$dir/seed7"; }
check 'another seed gives another text' differs
printf 'My dear sister,' | "$firn" run --no-disk --seed 7 -n 24 - >"$dir/out" 2>"$dir/err"
check 'a prompt from standard input is the same prompt' cmp -s "$dir/out" "$dir/seed7"
call run --no-disk --seed 7 -n 24 --json 'My dear sister,'
json_answer() { exits 0 && out_has '"finish":"length"' && out_has '"completion_tokens":24' && [ "$(wc -l <"$dir/out")" -eq 1 ]; }
check 'run --json prints one object' json_answer
stopped() { exits 0 && ! out_has 'the'; }
call run --no-disk --temp 0 -n 4000000000 --ctx 40 'My dear sister,'
check 'more tokens than the context holds are not asked for' exits 0
call run --no-disk --temp 0 -n 1 --ctx 6 'My dear sister,'
check 'a prompt beyond the context is refused with the figures' one_line '^firn run: .*6'
call run --no-disk --temp 0 -n 200 --stop 'the' 'My dear sister,'
check 'a stop text ends the answer and is not shown' stopped
"$firn" run --no-disk -n 4 'My dear sister,' >/dev/full 2>"$dir/err" </dev/null
status=$?
check 'an answer that cannot be written is status 1' exits 1

# ---- a stop signal ----

rm -f "$dir/out"
"$firn" run --no-disk --ignore-end -n 0 'My dear sister,' >"$dir/out" 2>"$dir/err" </dev/null &
pid=$!
tries=0
while [ ! -s "$dir/out" ] && [ $tries -lt 200 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
kill -TERM $pid # a shell's background job ignores SIGINT; both take the same way
wait $pid
status=$?
cancelled() { exits 1 && err_has "$last_line"; }
check 'a stop signal ends the answer and still prints the last line' cancelled

# ---- the disk cache ----

prompt='It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of
a wife. However little known the feelings or views of such a man may be on his first entering a neighbourhood, this truth
is so well fixed in the minds of the surrounding families, that he is considered the rightful property of some one or
other of their daughters.'
cache=$dir/cache
call run --restore-always --cache-dir "$cache" --temp 0 -n 16 "$prompt"
check 'the first run with a cache directory computes everything' err_has ' 0 cached \(ram 0, disk 0\)'
cp "$dir/out" "$dir/cold"
call run --restore-always --cache-dir "$cache" --temp 0 -n 16 "$prompt"
check 'the second run takes the prompt from disk' err_has 'disk [1-9][0-9]*\)'
check 'and gives the same answer' cmp -s "$dir/out" "$dir/cold"
call run --restore-always --cache-dir "$cache" --temp 0 -n 16 --namespace other "$prompt"
check 'another namespace does not see it' err_has ' 0 cached \(ram 0, disk 0\)'
private() { [ -d "$cache" ] && [ -z "$(find "$cache" -type d ! -perm 700)" ] && [ -z "$(find "$cache" -type f ! -perm 600)" ]; }
check 'the directory is 0700 and its files 0600' private

call cache stat --cache-dir "$cache"
has_totals() { exits 0 && out_has '^records +[1-9]' && out_has '^  namespace "": [1-9]' && out_has '^  namespace "other": [1-9]'; }
check 'cache stat shows totals and namespaces' has_totals
call cache stat --cache-dir "$cache" --json
check 'cache stat --json has the same' out_has '"namespace": "other"'
call cache ls --cache-dir "$cache"
lists() { exits 0 && [ "$(wc -l <"$dir/out")" -ge 3 ] && out_has ' 0\.\.[1-9][0-9]* '; }
check 'cache ls shows a line for each prefix' lists
check 'with the families of its layers' out_has '  full [1-9][0-9]* window 0 fixed 0  '
call cache ls --cache-dir "$cache" --json
check 'cache ls --json is an array' out_has '"end_token": [1-9]'
call cache verify --cache-dir "$cache"
check 'cache verify finds nothing bad' out_has '^[1-9][0-9]* records are good, 0 are bad$'
rm -r "$cache/index"
call cache stat --cache-dir "$cache"
check 'a lost index is named, with the command that helps' one_line '^firn cache stat: the index of .* is missing.*firn cache fsck'
call cache fsck --cache-dir "$cache"
check 'cache fsck makes it anew' out_has '^records     [1-9]'
call cache fsck --quick --json --cache-dir "$cache"
check 'cache fsck --json counts the same' out_has '"damaged": 0'
call cache verify --cache-dir "$cache"
check 'all records of the new index are good' out_has '^[1-9][0-9]* records are good, 0 are bad$'
call cache stat --cache-dir "$cache" --json
check 'and so are the names of namespaces' out_has '"namespace": "other"'
call cache stat --cache-dir "$dir/nowhere"
not_created() { one_line 'nowhere: No such file' && [ ! -e "$dir/nowhere" ]; }
check 'a missing cache directory is named and not created' not_created
call cache ls --cache-dir tests
check 'a foreign directory is named' one_line '^firn cache ls: tests holds no Firn cache'
call cache ls --cache-dir Makefile
check 'a file is no cache directory' one_line '^firn cache ls: Makefile is not a directory'

emptied() { exits 0 && out_has '^removed [1-9][0-9]* records' && [ -z "$(find "$cache" -name 'seg-*')" ]; }
call cache wipe --cache-dir "$cache"
check 'cache wipe removes all stored state' emptied
call run --restore-always --cache-dir "$cache" --temp 0 -n 16 "$prompt"
check 'after a wipe the prompt is computed again' err_has ' 0 cached \(ram 0, disk 0\)'
call run --restore-always --cache-dir "$cache" --temp 0 -n 16 "$prompt"
check 'and the directory works as before' err_has 'disk [1-9][0-9]*\)'
mkdir "$dir/foreign" && echo precious >"$dir/foreign/seg-00000001.firn"
call cache wipe --cache-dir "$dir/foreign"
spared() { exits 1 && [ -s "$dir/foreign/seg-00000001.firn" ]; }
check 'cache wipe spares a directory that is no cache' spared

# ---- a store with a model's eyes ----

kept=$dir/kept
printf '%s' "$prompt" >"$dir/prompt.txt"
printf '%.200s and there it goes on otherwise than before' "$prompt" >"$dir/other.txt"
call run --restore-always --cache-dir "$kept" --temp 0 -n 4 "$prompt"
call cache explain --cache-dir "$kept" --prompt "$dir/prompt.txt"
check 'cache explain says that all of a stored prompt is used' out_has '^reason +ok: '
call cache explain --cache-dir "$kept" --prompt "$dir/other.txt"
sides() { exits 0 && out_has '^reason +diverged: ' && out_has '^at token [1-9]' && out_has '^  prompt +\[[0-9]+\] .*' && out_has '^  stored +\[[0-9]+\] '; }
check 'cache explain shows both sides of the first token that differs' sides
call cache explain --cache-dir "$kept" --prompt "$dir/prompt.txt" --kv q8
differs_in() { exits 0 && out_has '^reason +wrong_identity' && out_has '^    kv_dtype: q8 here, f16 there$'; }
check 'cache explain names the fields in which the identity differs' differs_in
call cache explain --cache-dir "$kept" --prompt "$dir/prompt.txt" --namespace nobody --json
check 'cache explain --json says the same in fields' out_has '"reason": "no_prefix"'
sleep 1.1
call cache explain --cache-dir "$kept" --prompt "$dir/prompt.txt" --ttl 1
check 'cache explain counts what has expired' out_has '[1-9][0-9]* expired$'
call cache explain --cache-dir "$dir/nowhere" --prompt "$dir/prompt.txt"
check 'cache explain creates nothing' not_created

call cache pin house --prompt "$dir/prompt.txt" --cache-dir "$kept" --for 1d
check 'cache pin keeps the stored part of a prompt' out_has '^pinned [1-9][0-9]* of [1-9]'
call cache pin --cache-dir "$kept"
check 'cache pin alone lists the pins' out_has '^"house": [1-9][0-9]* tokens, '
call run --restore-always --cache-dir "$kept" --temp 0 -n 4 --namespace other "$prompt"
call cache prune --cache-dir "$kept"
check 'cache prune without a choice is wrong usage' usage_says 'say what is to go'
call cache prune --cache-dir "$kept" --older 0.001 --dry-run
cp "$dir/out" "$dir/tried"
check 'cache prune --dry-run says what would go' out_has ': would remove [1-9][0-9]* records, .* [1-9][0-9]* stay because they are pinned'
call cache prune --cache-dir "$kept" --older 0.001
as_said() { exits 0 && [ "$(sed 's/.*remove \([0-9]*\) rec.*/\1/' "$dir/tried")" = "$(sed 's/.*removed \([0-9]*\) rec.*/\1/' "$dir/out")" ]; }
check 'cache prune removes just what the trial said' as_said
call run --restore-always --cache-dir "$kept" --temp 0 -n 4 --namespace other "$prompt"
check 'what was pruned is computed again' err_has ' 0 cached \(ram 0, disk 0\)'
call run --restore-always --cache-dir "$kept" --temp 0 -n 4 "$prompt"
all_of_it() { sed -n 's/^\([0-9]*\) prompt tokens, \([0-9]*\) cached.*/\1 \2/p' "$dir/err" | { read -r all got && [ "$got" -eq "$all" ]; }; }
check 'what is pinned is still there, the logits behind its last token too' all_of_it
call cache wipe --cache-dir "$kept" --namespace ''
check 'cache wipe --namespace removes what is pinned too' out_has '^removed [1-9][0-9]* records of namespace ""'
call cache pin --cache-dir "$kept" --json
check 'and the pins of the namespace' out_has '^\[\]$'
call run --restore-always --cache-dir "$kept" --temp 0 -n 4 --namespace other "$prompt"
check 'another namespace keeps its state' err_has 'disk [1-9]'
call cache verify --cache-dir "$kept"
check 'and the store is whole' exits 0
call cache unpin house --cache-dir "$kept"
check 'a pin that is not there is said so' one_line '^firn cache unpin: '

# ---- namespaces below others, names, and a lost index ----

call run --restore-always --cache-dir "$kept" --temp 0 -n 4 --namespace house "$prompt"
call run --restore-always --cache-dir "$kept" --temp 0 -n 4 --namespace '"house"/"b\"ob"' "$prompt"
check 'a namespace below another is named as it is written, and reads it' err_has 'disk [1-9]'
call run --restore-always --cache-dir "$kept" --temp 0 -n 4 --namespace '"house"/"b\"ob"' "$prompt And more of it, which is its own"
call cache stat --cache-dir "$kept"
check 'cache stat tells parent and child apart' out_has '^  namespace "house"/"b\\"ob": [1-9]'
call cache ls --cache-dir "$kept"
check 'and so does cache ls' out_has '"house"/"b\\"ob"'
call cache stat --cache-dir "$kept" --json
check 'in JSON it is the stored name' out_has '"namespace": "house\\u001[fF]b\\"ob"'
call cache pin longer --prompt "$dir/prompt.txt" --cache-dir "$kept" --for 1d --namespace '"house"/"b\"ob"'
check 'cache pin takes the same name' out_has '^pinned [1-9][0-9]* of [1-9]'
call cache stat --cache-dir "$kept"
check 'cache stat lists what is pinned' out_has '^pinned +"longer", namespace "house"/"b\\"ob", [1-9][0-9]* tokens, prompt, until 2'
call cache prune --cache-dir "$kept" --namespace '"house"/' --older 1
check 'a name that is written wrong is wrong usage' usage_says '--namespace: "house"/ is not a name'
call run --restore-always --cache-dir "$kept" --temp 0 -n 1 --namespace ends "$prompt"
printf '%s and what nobody asked before' "$prompt" >"$dir/longer.txt"
call cache explain --cache-dir "$kept" --prompt "$dir/longer.txt" --namespace ends
check 'cache explain says when nothing differs' out_has '^  stored +\(nothing differs: what is stored of this prompt ends here\)'
rm -r "$kept/index"
call cache fsck --cache-dir "$kept"
back() { exits 0 && out_has '^left out +0 damaged, 0 without' && out_has '^by name +1 pins, 0 sessions, 0 objects; lost: 0 '; }
check 'cache fsck brings children and pins back' back
call cache stat --cache-dir "$kept" --json
check 'cache stat --json has the pins' out_has '"name": "longer"'
rm -r "$kept/index" && rm "$kept"/ledger-*.firn
call cache fsck --cache-dir "$kept"
check 'without a ledger it says what is lost' out_has '^by name +there is no ledger'
call cache wipe --cache-dir "$kept" --namespace '"house"/"b\"ob"'
check 'cache wipe takes the same name' out_has '^removed [1-9][0-9]* records of namespace "house"/"b\\"ob"'

# ---- an encrypted store ----

sealed=$dir/sealed
key=00112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef
printf '%s\n' "$key" >"$dir/key" && printf '%s\n' "$key" | tr 0 1 >"$dir/other.key" && printf 'short' >"$dir/short.key"
chmod 600 "$dir"/*key
call run --restore-always --cache-dir "$sealed" --cache-key-file "$dir/key" --temp 0 -n 4 "$prompt"
call run --restore-always --cache-dir "$sealed" --cache-key-file "$dir/key" --temp 0 -n 4 "$prompt"
check 'an encrypted cache is read with its key' err_has 'disk [1-9]'
FIRN_CACHE_KEY=$key call run --restore-always --cache-dir "$sealed" --temp 0 -n 4 "$prompt"
check 'and with the key of the environment' err_has 'disk [1-9]'
call run --restore-always --cache-dir "$sealed" --cache-key-file "$dir/other.key" --temp 0 -n 4 "$prompt"
without() { exits 0 && err_has 'not made with the key' && err_has 'disk 0\)'; }
check 'with another key it is not, which is said, and the answer is computed' without
call run --restore-always --cache-dir "$sealed" --cache-key-file "$dir/short.key" --temp 0 -n 4 "$prompt"
check 'a key file that is none is named' err_has 'short\.key'
call cache pin sealed --prompt "$dir/prompt.txt" --cache-dir "$sealed" --cache-key-file "$dir/key" --for 1d
call cache stat --cache-dir "$sealed"
check 'cache stat works without the key, and cannot name the pins' out_has '^pinned +\(encrypted\), namespace ""'
call cache stat --cache-dir "$sealed" --cache-key-file "$dir/key"
check 'with it, it can' out_has '^pinned +"sealed", namespace "", [1-9]'
call cache fsck --cache-dir "$sealed"
check 'cache fsck asks for the key' one_line '^firn cache fsck: .* is encrypted; .*--cache-key-file FILE'
rm -r "$sealed/index"
call cache fsck --cache-dir "$sealed" --cache-key-file "$dir/key"
check 'and brings the names back with it' out_has '^by name +1 pins, '
call run --restore-always --cache-dir "$sealed" --cache-key-file "$dir/key" --temp 0 -n 4 "$prompt"
check 'the rebuilt store is read with its key' err_has 'disk [1-9]'
spared_words() { ! grep -aq 'truth universally' "$sealed"/*.firn "$sealed"/index/data.mdb && ! grep -aq sealed "$sealed"/ledger-*.firn; }
check 'neither prompts nor names are in its files' spared_words
call cache wipe --cache-dir "$sealed"
wiped_all() { exits 0 && [ -z "$(find "$sealed" -name '*-*.firn')" ]; }
check 'a wipe needs no key, and leaves no ledger' wiped_all

# ---- traces ----

cat >"$dir/trace.jsonl" <<'END'
{"block_size":64,"requests":[{"t":0,"runs":[[1,4]]},{"t":5,"runs":[[1,8]]},{"t":6,"requests":[{"t":0,"runs":[[100,2]]}]},{"t":9,"runs":[[1,6],[9,2]]}]}
{"block_size":64,"requests":[{"t":0,"runs":[[1,10]]},{"t":900,"runs":[[1,12]]}]}
END
call cache replay "$dir/trace.jsonl" --users 1 --capacity 100% --families recurrent
# 44 blocks asked for: 4+8+2+8+10+12; found: 4, 6, 10. Different ones: 12 and 12.
figures() { exits 0 && out_has '^6 requests in 2 sessions, 1 users; 2816 tokens asked for, 1536 different' && out_has ' 0\.455 +1\.00$' && out_has 'only what is new 1\.0$'; }
check 'cache replay counts hits and writes as by hand' figures
call cache replay "$dir/trace.jsonl" --capacity 256,0.5K,100% --policy cost --admission second --json --plot "$dir/plot.svg"
drawn() { exits 0 && out_has '"hit_rate": 0\.' && grep -q '</svg>' "$dir/plot.svg" && [ "$(grep -c '<circle' "$dir/plot.svg")" -eq 4 ]; }
check 'cache replay --plot draws each capacity' drawn
trace_error() { printf '%s\n' "$1" >"$dir/bad.jsonl" && call cache replay "$dir/bad.jsonl" && one_line "^firn cache replay: .*bad\.jsonl:$2"; }
check 'a line that is no JSON is named' trace_error 'nonsense' '1:[0-9]+: no JSON'
check 'a request without runs is named' trace_error '{"requests":[{"t":1}]}' '1: a request has no "runs"'
check 'a huge count is refused' trace_error '{"requests":[{"t":1,"runs":[[1,4000000000]]}]}' '1: a run is not'
check 'too many blocks are refused' trace_error '{"requests":[{"t":1,"runs":[[1,2000000000]]}]}' '1: a request has more than'
check 'a negative time is refused' trace_error '{"timestamp":-1,"hash_ids":[1]}' '1: neither a session'
check 'a block that stands twice is refused' trace_error '{"timestamp":1,"hash_ids":[1,2,1]}' '1: a block id stands twice'
printf '{"timestamp":1,"hash_ids":[1,2]}\n{"timestamp":2,"hash_ids":[3,2]}\n' >"$dir/bad.jsonl"
call cache replay "$dir/bad.jsonl"
check 'ids that do not name their prefix are refused' one_line 'behind two different blocks'
call cache replay "$dir/trace.jsonl" --capacity 5x
check 'a malformed capacity is wrong usage' usage_says '--capacity: "5x"'

# The recorded traces are no part of the project: FIRN_TRACES names their directory.
hits_are() { # NAME WITHIN EXPECTED...: the column of hits
    within=$1
    shift
    awk -v within="$within" -v expected="$*" 'BEGIN { n = split(expected, e, " ") } /^ +[0-9]+ +[0-9.]+% / { i++; d = $3 - e[i]; if (d < 0) d = -d; if (d > within) bad = 1 } END { exit bad || i != n }' "$dir/out"
}
if [ -n "${FIRN_TRACES:-}" ]; then
    call cache replay "$FIRN_TRACES/mooncake_conversation_trace.jsonl"
    check 'the recorded conversations give the known rates' hits_are 0.005 .079 .196 .279 .345 .360 .366
    call cache replay "$FIRN_TRACES/mooncake_synthetic_trace.jsonl"
    check 'the synthetic requests give the known rates' hits_are 0.005 .078 .157 .262 .393 .545 .640
    call cache replay "$FIRN_TRACES/agent_sessions_rle.jsonl" --users 8 --capacity 0.5M,1M,2M,4M
    check 'the recorded agents give the known rates' hits_are 0.005 .797 .923 .959 .963
    check 'and the known writes' out_has 'each request 27\.3, .*only what is new 1\.0$'
fi

# ---- speculation ----

prompt2='And the king said unto the people, and the people said unto the king, and the king said unto the people, and'
drafter=models/firn-tiny-draft-q8_0.gguf
call run --no-disk --temp 0 -n 60 "$prompt2"
cp "$dir/out" "$dir/plain"
drafted() { exits 0 && cmp -s "$dir/out" "$dir/plain" && err_has '; [1-9][0-9]* drafted, [1-9][0-9]* accepted, [1-9][0-9.]* tokens a round$'; }
call run --no-disk --temp 0 -n 60 --draft ngram --draft-always "$prompt2"
check 'run --draft ngram gives the same text and says what held' drafted
call run --restore-always --cache-dir "$dir/spec" --disk-budget 300M --temp 0 -n 60 --draft $drafter --draft-always "$prompt2"
check 'run --draft MODEL gives the same text and says what held' drafted
sed 's/.*; \([0-9]* drafted\)/\1/' "$dir/err" >"$dir/acceptance"
call run --restore-always --cache-dir "$dir/spec" --disk-budget 300M --temp 0 -n 60 --draft $drafter --draft-always "$prompt2"
as_well() { drafted && err_has 'disk [1-9]' && sed 's/.*; \([0-9]* drafted\)/\1/' "$dir/err" | cmp -s - "$dir/acceptance"; }
check 'after a restart the drafter guesses exactly as well' as_well
call cache stat --cache-dir "$dir/spec"
two_stores() { exits 0 && [ "$(grep -c '^directory' "$dir/out")" -eq 2 ] && out_has 'spec/draft$'; }
check "cache stat shows the drafter's store too" two_stores
call cache wipe --cache-dir "$dir/spec"
both_gone() { exits 0 && [ -z "$(find "$dir/spec" -name 'seg-*')" ]; }
check "cache wipe removes the drafter's store too" both_gone
call run --no-disk --draft tests/oracle/llama.gguf 'a'
check 'a drafter with another vocabulary is refused' one_line '^firn run: .*another vocabulary .512 tokens.*2048 tokens'
call run --no-disk --draft "$dir/none.gguf" 'a'
check 'a missing drafter is named' one_line '^firn run: --draft .*none\.gguf'
call run --no-disk --draft Makefile 'a'
check 'a file that is no model is no drafter' one_line '^firn run: --draft Makefile.*not a GGUF'
call run --no-disk --draft-max 4 'a'
check '--draft-max alone is refused' one_line '^firn run: --draft-max 4: nothing drafts'
call bench --prompt 0 --draft ngram --draft-gen 40 --runs 1
speeds() { exits 0 && out_has 'repeating text, guessing .*times plain .*guesses held'; }
check 'bench --draft compares with plain decode' speeds

# ---- packed weights ----

call synth --arch llama --params 48M --type q8_0 -o "$dir/large.gguf"
check 'a model is made whose weights are worth keeping' exits 0
start() { call run -m "$dir/large.gguf" --cache-dir "$dir/start" --disk-budget "$1" --temp 0 -n 3 --ignore-end 'a'; }
n_packed() { [ "$(find "$dir/start" -name '*.packed' | wc -l)" -eq "$1" ]; }
start 64M
small() { exits 0 && n_packed 0; }
check 'packed weights take at most half of the disk budget' small
cp "$dir/out" "$dir/plain"
start 256M
kept() { exits 0 && n_packed 1 && cmp -s "$dir/out" "$dir/plain"; }
check 'the first start leaves packed weights in the cache directory' kept
ls -i "$dir/start/packed" >"$dir/before"
start 256M
same_file() { kept && ls -i "$dir/start/packed" | cmp -s - "$dir/before"; }
check 'the next start maps them, and answers the same' same_file
call bench -m "$dir/large.gguf" --packed-dir "$dir/start/packed" --prompt 4 --gen 0 --runs 1
check 'bench --packed-dir says that weights are mapped' out_has '^opened in [0-9.]+ s, weights mapped as packed before$'
call cache stat --cache-dir "$dir/start"
check 'cache stat says what they take' out_has '^weights     [1-9][0-9.]* MiB packed, beside that$'
call cache wipe --cache-dir "$dir/start"
wiped() { exits 0 && [ ! -e "$dir/start/packed" ]; }
check 'cache wipe removes them' wiped
mkdir "$dir/only" && "$firn" run -m "$dir/large.gguf" --no-disk --packed-dir "$dir/only/packed" -n 1 a >"$dir/out" 2>"$dir/err"
call run -m "$dir/large.gguf" --cache-dir "$dir/only" -n 1 a
taken() { exits 0 && [ -e "$dir/only/firn.lock" ] && ! err_has 'disk cache:'; }
check 'a directory that holds packed weights alone becomes a cache' taken
call run -m "$dir/large.gguf" --cache-dir "$dir/never" --packed-dir off -n 1 a
unpacked() { exits 0 && [ ! -e "$dir/never/packed" ]; }
check '--packed-dir off keeps nothing' unpacked
rm -f "$dir/large.gguf"

# ---- bench, tiny ----

call bench --prompt 80 --depth 70 --gen 6 --batch 1,3 --runs 2 --chunk 32 --ttft 200 --cache-dir "$dir" --json
measured() {
    exits 0 && out_has '"prefill_tokens_per_second"' && out_has '"batch": 3' && out_has '"stream_share"' &&
        out_has '"prefill_multiply_share"' && out_has '"busy_rate_kept"' &&
        out_has '"restore_to_raw"' && out_has '"ram_to_cold"' && [ -z "$(find "$dir" -name 'firn-bench-*')" ]
}
check 'bench checks and measures, and leaves nothing behind' measured
call bench --prompt 0 --gen 4 --runs 2 --deep 70,300 --kv q8
deep() { exits 0 && out_has 'kv q8 .made-up state' && out_has '^  at 300 tokens .* bytes of state a token'; }
check 'bench --deep decodes behind made-up state and says so' deep
call bench --prompt 0 --gen 4 --runs 1 --deep 3
check 'bench --deep leaves room for what is decoded' usage_says '--deep 3 has no room for --gen 4'
call bench --prompt 0 --gen 8 --runs 1 --chunk 64 --saving 256 --shared 256 --sampling --cache-dir "$dir" --json
beside() {
    exits 0 && out_has '"save_lost_steps"' && out_has '"restore_lost_steps"' && out_has '"one_user_bytes"' &&
        out_has '"back_seconds"' && out_has '"beside_forward_seconds"' && [ -z "$(find "$dir" -name 'firn-bench-*')" ]
}
check 'bench measures what saving costs others, what users share and what sampling takes' beside
call bench --prompt 0 --saving 100
check 'bench --saving has a least size' usage_says '--saving and --shared must be at least 128 tokens'
call bench --prompt 20 --gen 4 --batch 1,2 --runs 1 --depth 300 --made-up --json
made_up() { exits 0 && out_has '"depth_tokens": 300' && out_has '"depth_is_made_up": true' && out_has '"batch": 2'; }
check 'bench --made-up checks and measures behind a depth that nobody has read' made_up
call bench --prompt 64 --gen 4 --batch 1 --runs 1
table() { exits 0 && out_has '^  prefill 64 +[0-9.e+]+ tok/s' && out_has '^  decode 4, batch 1 ' && [ ! -s "$dir/err" ]; }
check 'bench prints a table' table
[ $n_bad -eq 0 ]
