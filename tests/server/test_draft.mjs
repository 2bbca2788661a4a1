// Speculation through the server: the same answers, explained in usage and metrics, and as good after a restart.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { complete, events, finish, metrics, post, root, serve, serveFails, temporaryDir, test } from './harness.mjs';

const drafter = join(root, 'models/firn-tiny-draft-q8_0.gguf');
const prompt = 'The first son of the king was a lord of the land, and the second son of the king was a lord of the sea. '
    + 'The third son of the king was a lord of the land, and the fourth son of the king was';
const ask = (server, more = {}) => complete(server, { prompt, max_tokens: 80, logprobs: 2, ...more });
const variants = [{}, { temperature: 0.9, seed: 4 }, { stop: [' the'] }, { presence_penalty: 0.5, top_p: 0.9, temperature: 0.5, seed: 9 }];

const plain = await serve(['--no-disk']);
const expected = [];
for (const variant of variants) {
    expected.push((await ask(plain, variant)).json.choices[0]);
}
await plain.stop();

async function answersAreEqual(server) {
    for (const [i, variant] of variants.entries()) {
        const { status, json } = await ask(server, variant);
        assert.equal(status, 200);
        assert.deepEqual(json.choices[0], expected[i]);
    }
    const streamed = await post(server, '/v1/completions', {
        prompt, max_tokens: 80, temperature: 0, stream: true, stream_options: { include_usage: true },
    });
    const all = events(streamed.text).slice(0, -1);
    assert.equal(all.map((event) => event.choices[0]?.text ?? '').join(''), expected[0].text);
    return all.at(-1).firn.draft;
}

const ngram = await serve(['--no-disk', '--draft', 'ngram', '--draft-max', '6', '--draft-always']);
await test('guesses from the text change no answer and are counted', async () => {
    const draft = await answersAreEqual(ngram);
    assert.ok(draft.rounds > 0 && draft.accepted > 0 && draft.accepted <= draft.drafted);
    assert.ok(draft.tokens_per_round > 1);
    const values = await metrics(ngram);
    assert.ok(values.firn_draft_rounds_total >= draft.rounds);
    assert.ok(values.firn_draft_tokens_total >= draft.drafted);
    assert.ok(values.firn_draft_accepted_tokens_total >= draft.accepted);
    assert.ok(values.firn_draft_round_tokens_total > values.firn_draft_rounds_total);
    assert.ok(values.firn_draft_tokens_per_round > 1);
});
await ngram.stop();

const dir = temporaryDir();
const flags = ['--cache-dir', dir, '--draft', drafter, '--draft-always', '--ram-budget', '256M'];
let before;
const first = await serve(flags);
await test('a drafter changes no answer', async () => {
    before = await answersAreEqual(first);
    assert.ok(before.accepted > 0);
    assert.ok((await metrics(first)).firn_draft_prefix_held_bytes > 0);
});
await first.stop();

const second = await serve(flags);
await test('after a restart its state comes from disk and it guesses as well', async () => {
    const { json } = await ask(second);
    assert.ok(json.usage.prompt_tokens_details.cached_tokens > 30);
    assert.deepEqual(json.choices[0], expected[0]);
    assert.deepEqual(json.firn.draft, before);
    const values = await metrics(second);
    assert.ok(values['firn_draft_prefix_tokens_total{source="disk"}'] > 30);
    assert.ok(values.firn_draft_disk_physical_bytes > 0);
});
await second.stop();

await test('what cannot draft is refused at the start', async () => {
    for (const [flag, words] of [
        [['--draft', join(root, 'tests/oracle/llama.gguf')], ['another vocabulary', '512 tokens', '2048 tokens']],
        [['--draft', '/nonexistent.gguf'], ['--draft', '/nonexistent.gguf', 'No such file']],
        [['--draft', join(root, 'README.md')], ['--draft', 'README.md', 'not a GGUF']],
        [['--draft', 'ngram', '--draft-max', 'many'], ['--draft-max', 'many', '0..64']],
        [['--draft', 'ngram', '--draft-max', '65'], ['--draft-max', '65', '0..64']],
        [['--draft-max', '4'], ['--draft-max', '--draft']],
    ]) {
        const failed = await serveFails(['--no-disk', ...flag]);
        for (const word of words) {
            assert.ok(failed.stderr.includes(word), `${word} in: ${failed.stderr}`);
        }
    }
});
finish();
