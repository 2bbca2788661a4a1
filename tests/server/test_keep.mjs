// What operators and users keep: warm-ups, pins, sessions, flushes, users' keys, and answers that go on after a kill.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync, statSync, writeFileSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import {
    complete, finish, firn, metrics, model, post, serve, serveFails, sleep, temporaryDir, test, until, words,
} from './harness.mjs';

const bearer = (key) => ({ headers: { Authorization: `Bearer ${key}` } });
const house = 'You are the house. ' + words(2, 150);
const call = async (server, method, path, options = {}) => {
    const response = await fetch(server.url + path, { method, ...options });
    const text = await response.text();
    return { status: response.status, json: (() => { try { return JSON.parse(text); } catch { return null; } })() };
};

await test('warm-ups are read before the first request, pinned, listed, and still warm after a restart', async () => {
    const dir = temporaryDir(), prompts = temporaryDir();
    writeFileSync(join(prompts, 'house.txt'), house);
    writeFileSync(join(prompts, 'rules.json'), JSON.stringify({ name: 'the rules', prompt: words(5, 80), ttl: 500 }));
    writeFileSync(join(prompts, 'notes.md'), 'not a prompt');
    const flags = ['--cache-dir', dir, '--parent', 'house', '--warm', prompts];
    const server = await serve(flags);
    assert.match(server.stdout, /^warm: house, \d+ tokens, \d+ computed$/m);
    assert.match(server.stdout, /^warm: the rules, /m);
    const { json } = await call(server, 'GET', '/v1/firn/pins');
    assert.deepEqual(json.pins.map((pin) => pin.name).sort(), ['house', 'the rules']);
    for (const pin of json.pins) {
        assert.equal(pin.namespace, 'house');
        assert.equal(pin.durable, true);
        assert.ok(pin.bytes > 0 && pin.tokens > 20);
    }
    const ask = await complete(server, { prompt: `${house} What now?`, cache_namespace: 'alice' });
    assert.ok(ask.json.firn.computed < 40, JSON.stringify(ask.json.firn));
    await server.stop('SIGKILL');

    const again = await serve(flags);
    assert.match(again.stdout, /^warm: house, \d+ tokens, 0 computed$/m);
    assert.equal((await metrics(again))['firn_prompt_tokens_by_source_total{source="computed"}'] ?? 0, 0);
    const second = await complete(again, { prompt: `${house} And then?`, cache_namespace: 'bob' });
    assert.ok(second.json.firn.disk > 50 && second.json.firn.computed < 40, JSON.stringify(second.json.firn));
    assert.equal((await call(again, 'DELETE', '/v1/firn/pins/the%20rules')).status, 200);
    assert.equal((await call(again, 'DELETE', '/v1/firn/pins/the%20rules')).status, 404);
    assert.equal((await call(again, 'GET', '/v1/firn/pins')).json.pins.length, 1);
    assert.equal((await call(again, 'DELETE', '/v1/firn/pins')).status, 405);
    await again.stop();
});

await test('POST /v1/firn/warm reads and pins, and says what is wrong with a body', async () => {
    const server = await serve(['--no-disk']);
    const warm = await post(server, '/v1/firn/warm', { name: 'p', prompt: house, ttl: 60 });
    assert.equal(warm.status, 200, warm.text);
    assert.equal(warm.json.durable, false);
    assert.ok(warm.json.computed > 50);
    assert.equal((await call(server, 'GET', '/v1/firn/pins')).json.pins[0].name, 'p');
    const m = await metrics(server);
    assert.equal(m['firn_pins{where="ram"}'], 1);
    assert.ok(m['firn_pinned_bytes{where="ram"}'] > 0);
    for (const body of [{}, { name: 'p' }, { name: '', prompt: 'x' }, { name: 'p', prompt: 'x', ttl: 0 },
        { name: 'p', prompt: 'x', messages: [] }]) {
        assert.equal((await post(server, '/v1/firn/warm', body)).status, 400, JSON.stringify(body));
    }
    await server.stop();
});

await test('messages are warmed up to where conversations part', async () => {
    const server = await serve(['--no-disk']);
    const system = { role: 'system', content: words(3, 90) };
    const warm = await post(server, '/v1/firn/warm', { name: 's', messages: [system] });
    assert.equal(warm.status, 200, warm.text);
    for (const content of ['Tell me of the sea', 'And 2 whales?']) {
        const chat = await post(server, '/v1/chat/completions',
            { messages: [system, { role: 'user', content }], max_tokens: 2 });
        assert.equal(chat.json.firn.ram, warm.json.tokens);
        assert.equal(chat.json.firn.first_divergence, warm.json.tokens);
    }
    const whole = [system, { role: 'user', content: 'Tell me of the sea' }];
    assert.equal((await post(server, '/v1/firn/warm', { name: 't', messages: whole })).json.computed, 0);
    assert.equal((await post(server, '/v1/firn/warm', { name: 'u', messages: [{ role: 'x' }] })).status, 400);
    await server.stop();
});

await test('a warm-up that cannot be read stops the start and is named', async () => {
    const dir = temporaryDir();
    mkdirSync(join(dir, 'p'));
    writeFileSync(join(dir, 'p', 'bad.json'), '{"prompt": 1}');
    const server = await serveFails(['--no-disk', '--warm', join(dir, 'p')]);
    assert.match(server.stderr, /bad\.json/);
});

await test('users keep to the namespace of their key, and read its parent', async () => {
    const dir = temporaryDir(), keys = join(dir, 'keys');
    writeFileSync(keys, '# users\nsk-alice alice house\nsk-bob bob house\n');
    const server = await serve(['--cache-dir', join(dir, 'c'), '--keys', keys], { env: { FIRN_API_KEY: 'boss' } });
    const warm = await post(server, '/v1/firn/warm', { name: 'h', prompt: house, namespace: 'house' }, bearer('boss'));
    assert.equal(warm.status, 200, warm.text);
    const prompt = `${house} My name is Alice and my secret is ${words(9, 40)}`;
    const alice = await complete(server, { prompt }, bearer('sk-alice'));
    assert.ok(alice.json.firn.ram > 50);
    const aliceAgain = await complete(server, { prompt }, bearer('sk-alice'));
    const bob = await complete(server, { prompt }, bearer('sk-bob'));
    assert.ok(aliceAgain.json.firn.ram > bob.json.firn.ram);
    assert.equal(bob.json.firn.ram, alice.json.firn.ram);
    assert.equal(bob.json.firn.diverged, false);
    assert.equal(bob.json.firn.difference, undefined);
    assert.equal(bob.json.firn.first_divergence, alice.json.firn.first_divergence);
    const refused = await complete(server, { prompt, cache_namespace: 'alice' }, bearer('sk-bob'));
    assert.equal(refused.status, 403);
    assert.equal((await complete(server, { prompt, cache_namespace: 'house\u001falice' }, bearer('boss'))).status, 400);
    for (const [method, path] of [['POST', '/v1/firn/flush'], ['GET', '/v1/firn/pins'], ['DELETE', '/v1/firn/pins/h']]) {
        const options = { headers: { ...bearer('sk-bob').headers, 'Content-Type': 'application/json' } };
        const { status } = await call(server, method, path, method === 'POST' ? { ...options, body: '{}' } : options);
        assert.equal(status, 403, path);
    }
    assert.equal((await complete(server, { prompt }, bearer('sk-carol'))).status, 401);
    await server.stop();
});

await test('firn.cache in a request is honoured and checked', async () => {
    const server = await serve(['--cache-dir', temporaryDir()]);
    const prompt = words(3, 120);
    const ask = async (cache) => (await complete(server, { prompt, firn: { cache } }));
    assert.equal((await ask({ store: 'none' })).json.firn.computed, (await ask({ store: 'none' })).json.firn.computed);
    assert.equal((await ask({ store: 'ram' })).json.firn.ram, 0);
    assert.ok((await ask({ store: 'none' })).json.firn.ram > 50);
    const unread = await ask({ read: false, store: 'none', priority: -3 });
    assert.equal(unread.json.firn.ram, 0);
    assert.equal(unread.json.firn.reason, 'disabled');
    for (const cache of [{ store: 'tape' }, { priority: 101 }, { priority: 'high' }, { read: 1 }, []]) {
        assert.equal((await ask(cache)).status, 400, JSON.stringify(cache));
    }
    const flush = await post(server, '/v1/firn/flush', {});
    assert.equal(flush.json.durable, true);
    assert.equal((await metrics(server)).firn_disk_records, 0); // for RAM alone means that
    await server.stop();
});

await test('a flush saves while requests run, by POST and by SIGUSR1', async () => {
    const dir = temporaryDir();
    const server = await serve(['--cache-dir', dir]);
    await complete(server, { prompt: words(4, 100) });
    const running = complete(server, { prompt: words(6, 50), max_tokens: 400, ignore_eos: true });
    const flush = await post(server, '/v1/firn/flush', { seconds: 30 });
    assert.equal(flush.status, 200, flush.text);
    assert.equal(flush.json.durable, true);
    assert.ok(flush.json.flushed >= 1 && flush.json.missing === 0 && flush.json.elapsed_ms >= 0);
    server.kill('SIGUSR1');
    await until(() => /^flushed: durable/m.test(server.stdout), 'the report of SIGUSR1');
    assert.equal((await running).json.usage.completion_tokens, 400);
    assert.equal((await post(server, '/v1/firn/flush', { seconds: 0 })).status, 400);
    await server.stop('SIGKILL');
    const again = await serve(['--cache-dir', dir]);
    const { json } = await complete(again, { prompt: words(4, 100) });
    assert.ok(json.firn.disk > 80, JSON.stringify(json.firn));
    await again.stop();
});

await test('a session is followed, exported, imported elsewhere and removed', async () => {
    const dir = temporaryDir(), other = temporaryDir();
    const server = await serve(['--cache-dir', dir]);
    const prompt = words(7, 130);
    const first = await complete(server, { prompt, firn_session: 'chat 1', max_tokens: 8 });
    assert.deepEqual(first.json.firn.session, { state: 'new', tokens: 0 });
    const sessions = async () => (await call(server, 'GET', '/v1/firn/sessions')).json.sessions;
    const [listed] = await until(async () => { const s = await sessions(); return s.length > 0 && s; }, 'the note');
    assert.equal(listed.id, 'chat 1');
    const next = await complete(server, { prompt: prompt + first.json.choices[0].text + ' and more' },
        { headers: { 'X-Firn-Session': 'chat 1' } });
    assert.ok(['continued', 'branched'].includes(next.json.firn.session.state)); // text need not split as it was made
    assert.equal(next.json.firn.session.tokens, listed.tokens);
    const branched = await complete(server, { prompt: 'No. ' + prompt, firn_session: 'chat 1', firn: { cache: { store: 'none' } } });
    assert.equal(branched.json.firn.session.state, 'branched');
    await post(server, '/v1/firn/flush', {});
    const [latest] = await sessions();
    const exported = await fetch(`${server.url}/v1/firn/sessions/chat%201/export`);
    assert.equal(exported.status, 200);
    const file = Buffer.from(await exported.arrayBuffer());
    assert.equal(file.length % 4096, 0);
    assert.equal((await call(server, 'GET', '/v1/firn/sessions/none/export')).status, 404);

    const second = await serve(['--cache-dir', other]);
    const headers = { 'Content-Type': 'application/octet-stream' };
    const imported = await call(second, 'POST', '/v1/firn/sessions/import', { headers, body: file });
    assert.equal(imported.status, 200, JSON.stringify(imported.json));
    assert.deepEqual(imported.json, { id: 'chat 1', tokens: latest.tokens, pinned: true });
    const again = await complete(second, { prompt });
    assert.ok(again.json.firn.disk > 100, JSON.stringify(again.json.firn));
    assert.equal(again.json.choices[0].text.slice(0, 4), first.json.choices[0].text.slice(0, 4));
    file[5000] ^= 1;
    assert.equal((await call(second, 'POST', '/v1/firn/sessions/import', { headers, body: file })).status, 400);
    assert.equal((await call(second, 'POST', '/v1/firn/sessions/import',
        { headers: { 'Content-Type': 'text/plain' }, body: 'x' })).status, 415);
    await second.stop();
    assert.equal((await call(server, 'DELETE', '/v1/firn/sessions/chat%201')).status, 200);
    assert.equal((await sessions()).length, 0);
    await server.stop();

    // The same without a server; another key/value type is another identity.
    const path = join(other, 'session.firn');
    const run = (...args) => spawnSync(firn, ['cache', ...args, '-m', model], { encoding: 'utf8' });
    const out = run('export', '--cache-dir', other, '--session', 'chat 1', '-o', path);
    assert.equal(out.status, 0, out.stderr);
    assert.equal(statSync(path).size, file.length);
    const third = temporaryDir();
    const back = run('import', '--cache-dir', third, '--session', 'again', path);
    assert.equal(back.status, 0, back.stderr);
    const wrong = run('import', '--cache-dir', third, '--kv', 'f32', path);
    assert.equal(wrong.status, 1);
    assert.match(wrong.stderr, /kv/);
    assert.equal(readFileSync(path).length, file.length);
});

await test('an answer goes on after a kill, and is the whole one to the byte', async () => {
    const dir = temporaryDir();
    const flags = ['--cache-dir', dir, '--checkpoint-tokens', '8'];
    const body = { prompt: words(8, 60), max_tokens: 300, ignore_eos: true, temperature: 0.8, seed: 11 };
    let server = await serve(flags);
    const whole = await complete(server, body);
    const cut = complete(server, { ...body, firn_request_id: 'req-1' }).catch(() => null);
    await until(async () => (await metrics(server)).firn_generation_checkpoints_total >= 2, 'two checkpoints');
    await server.stop('SIGKILL');
    assert.equal(await cut, null);
    server = await serve(flags);
    const resumed = await complete(server, { ...body, firn_request_id: 'req-1' });
    assert.ok(resumed.json.firn.resumed_tokens >= 16, JSON.stringify(resumed.json.firn));
    assert.equal(resumed.json.choices[0].text, whole.json.choices[0].text);
    assert.equal(resumed.json.usage.completion_tokens, 300);
    await sleep(300);
    const anew = await complete(server, { ...body, firn_request_id: 'req-1' });
    assert.equal(anew.json.firn.resumed_tokens, undefined);
    assert.equal(anew.json.choices[0].text, whole.json.choices[0].text);
    await server.stop();
});

await test('--demote-idle compresses what nobody uses, in an encrypted store too, and the answer stays the same', async () => {
    const dir = temporaryDir();
    const keyFile = join(temporaryDir(), 'key');
    writeFileSync(keyFile, '5a'.repeat(32));
    const flags = ['--cache-dir', dir, '--cache-key-file', keyFile, '--kv', 'q4', '--demote-idle', '0.5', '--restore-always'];
    const ask = { prompt: house, temperature: 0, max_tokens: 4 };
    const server = await serve(flags);
    const cold = await complete(server, ask);
    await post(server, '/v1/firn/flush', {});
    await until(async () => (await metrics(server)).firn_disk_demoted_total > 0, 'something compressed');
    assert.ok((await metrics(server)).firn_disk_demoted_saved_bytes_total > 0);
    await server.stop();
    const again = await serve(flags);
    const warm = await complete(again, ask);
    assert.equal(warm.json.choices[0].text, cold.json.choices[0].text);
    assert.ok(warm.json.firn.disk > 50, JSON.stringify(warm.json.firn));
    await again.stop();
    const { stdout } = spawnSync(firn, ['cache', 'stat', '--cache-dir', dir], { encoding: 'utf8' });
    assert.match(stdout, /^compressed  [1-9]\d* records, .* saved$/m);
    const wrong = await serve(['--cache-dir', dir, '--demote-idle', '1']);
    assert.equal((await complete(wrong, ask)).json.firn.disk, 0); // without the key it is served from RAM
    await wrong.stop();
});

finish();
