// A cache directory over a second one: where hits come from, what is said of each, and either of them failing.
import assert from 'node:assert/strict';
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { complete, finish, metrics, serve, serveFails, temporaryDir, test, until, words } from './harness.mjs';

const health = async (server) => (await fetch(`${server.url}/health`)).json();

await test('what the upper directory loses comes from the lower one, to the bit, and goes up again', async () => {
    const base = temporaryDir();
    const [upper, lower] = [join(base, 'fast'), join(base, 'large', 'made', 'on', 'demand')];
    const flags = ['--cache-dir', upper, '--cache-below', lower, '--cache-below-budget', '1G'];
    const ask = { prompt: words(1, 300), max_tokens: 8, logprobs: 3, cache_namespace: 'n' };
    const first = await serve(flags);
    assert.match(first.stdout, /over 1 GiB in .*large\/made\/on\/demand/);
    const before = (await complete(first, ask)).json;
    assert.deepEqual((await health(first)).tiers, { upper: 'ok', lower: 'ok' });
    assert.equal(await first.stop(), 0);
    assert.match(first.stdout, /saved [1-9]\d* prefixes, 0 could not be saved/);

    rmSync(upper, { recursive: true });
    const second = await serve(flags);
    const after = (await complete(second, ask)).json;
    assert.deepEqual(after.choices, before.choices); // the text and every log-probability
    assert.ok(after.firn.disk > 0 && after.firn.below === after.firn.disk, JSON.stringify(after.firn));
    const promoted = 'firn_stack_promotions_total{outcome="stored"}';
    await until(async () => (await metrics(second))[promoted] > 0, 'a promotion');
    const values = await metrics(second);
    assert.ok(values['firn_stack_hits_total{tier="lower"}'] > 0);
    assert.equal(values.firn_prefix_below_tokens_total, after.firn.below);
    assert.ok(values['firn_tier_records{tier="upper"}'] > 0 && values['firn_tier_records{tier="lower"}'] > 0);
    assert.equal(values['firn_tier_state{tier="lower",state="ok"}'], 1);
    assert.equal(await second.stop(), 0);

    const third = await serve(flags);
    const again = (await complete(third, ask)).json;
    assert.deepEqual(again.choices, before.choices);
    assert.ok(again.firn.disk > 0 && again.firn.below === 0, JSON.stringify(again.firn));
    const other = (await complete(third, { ...ask, cache_namespace: 'other' })).json;
    assert.equal(other.usage.prompt_tokens_details.cached_tokens, 0);
    assert.equal(await third.stop(), 0);
});

await test('a directory that can not be had leaves the other one serving alone, and is named', async () => {
    const base = temporaryDir();
    writeFileSync(join(base, 'file'), 'in the way');
    const [broken, good] = [join(base, 'file', 'cache'), join(base, 'good')];
    for (const [upper, lower] of [[broken, good], [good, broken]]) {
        const server = await serve(['--cache-dir', upper, '--cache-below', lower]);
        assert.match(server.stderr, /warning: one cache directory of two: .*file\/cache/);
        const answer = (await complete(server, { prompt: words(2, 200) })).json;
        assert.equal(answer.firn.below, 0);
        assert.equal(answer.firn.disk > 0, upper === good); // the first of the two has stored it
        assert.equal((await health(server)).disk, 'ok');
        assert.equal((await health(server)).tiers, undefined);
        assert.equal(await server.stop(), 0);
    }
});

await test('one directory in both places is refused', async () => {
    const dir = temporaryDir();
    const server = await serveFails(['--cache-dir', dir, '--cache-below', join(dir, '..', dir.split('/').at(-1))]);
    assert.equal(server.code, 1);
    assert.match(server.stderr, /--cache-below .* is the cache directory itself/);
});

finish();
