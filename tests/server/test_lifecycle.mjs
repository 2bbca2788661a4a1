// Start, stop, start again: what is kept, what is refused, what is said.
import assert from 'node:assert/strict';
import { mkdirSync, readdirSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import {
    complete, events, finish, metrics, post, serve, serveFails, skip, sleep, start, temporaryDir, test, until, words,
} from './harness.mjs';

await test('after a restart the state comes from disk, and the greedy text is the same', async () => {
    const dir = join(temporaryDir(), 'made', 'on', 'demand');
    const ask = { prompt: words(1, 300), max_tokens: 8, logprobs: 3, cache_namespace: 'n' };
    const first = await serve(['--cache-dir', dir]);
    const before = (await complete(first, ask)).json;
    const { prompt_tokens: n } = before.usage;
    assert.equal(before.firn.disk, 0);
    assert.equal(await first.stop(), 0);
    assert.match(first.stdout, /saved [1-9]\d* prefixes, 0 could not be saved/);

    const second = await serve(['--cache-dir', dir]);
    assert.match(second.stdout, /disk 16 GiB in .*\([1-9]\d* records/);
    const after = (await complete(second, ask)).json;
    assert.ok(after.firn.disk > 0, JSON.stringify(after.firn));
    assert.equal(after.usage.prompt_tokens_details.cached_tokens, after.firn.ram + after.firn.disk);
    assert.equal(after.firn.computed, n - after.firn.ram - after.firn.disk);
    assert.equal(after.firn.computed, 0); // the logits behind the prompt were stored with it
    assert.deepEqual(after.choices, before.choices); // the text and every log-probability
    const other = (await complete(second, { ...ask, cache_namespace: 'other' })).json;
    assert.equal(other.usage.prompt_tokens_details.cached_tokens, 0);
    const values = await metrics(second);
    assert.equal(values['firn_prompt_tokens_by_source_total{source="disk"}'], after.firn.disk);
    assert.ok(values.firn_disk_read_bytes_total > 0);
    assert.equal(values.firn_prefix_logits_restored_total, 1);
    assert.equal(await second.stop(), 0);
});

await test('what is stored is private to the user', async () => {
    const dir = join(temporaryDir(), 'cache');
    const server = await serve(['--cache-dir', dir]);
    await complete(server, { prompt: words(2, 100) });
    await server.stop();
    const walk = (path) => {
        const stat = statSync(path);
        assert.equal(stat.mode & 0o777, stat.isDirectory() ? 0o700 : 0o600, path);
        if (stat.isDirectory()) {
            readdirSync(path).forEach((name) => walk(join(path, name)));
        }
    };
    walk(dir);
});

await test('a running stream is finished before the server stops; new requests are refused', async () => {
    const server = await serve(['--no-disk', '--stop-seconds', '120']);
    const running = complete(server, { prompt: 'a', max_tokens: 400, stream: true });
    await until(async () => (await metrics(server)).firn_requests_running === 1, 'the stream to run');
    const late = new Promise((done) => {
        setTimeout(() => done(complete(server, { prompt: 'b' }).then((answer) => answer.status, () => 'refused')), 200);
    });
    const stopped = server.stop();
    const list = events((await running).text);
    assert.equal(list.at(-1), '[DONE]');
    assert.equal(list.filter((event) => event.choices?.[0].text).length, 400);
    assert.ok(['refused', 503].includes(await late));
    assert.equal(await stopped, 0);
});

await test('a stream that takes too long is cancelled within the bound, and told so', async () => {
    const server = await serve(['--no-disk', '--stop-seconds', '2']);
    const running = complete(server, { prompt: 'a', max_tokens: 8000, stream: true });
    const whole = complete(server, { prompt: 'b', max_tokens: 8000 });
    await until(async () => (await metrics(server)).firn_requests_running === 2, 'both to run');
    const begin = Date.now();
    assert.equal(await server.stop('SIGINT'), 0);
    assert.ok(Date.now() - begin < 6000, `${Date.now() - begin} ms`);
    assert.equal(events((await running).text).at(-1).error.code, 'stopping');
    assert.equal((await whole).status, 503);
});

await test('the second Ctrl-C ends it at once', async () => {
    const server = await serve(['--no-disk', '--stop-seconds', '60']);
    const running = complete(server, { prompt: 'a', max_tokens: 8000 }).catch(() => null);
    await until(async () => (await metrics(server)).firn_requests_running === 1, 'the request to run');
    server.kill('SIGINT');
    await until(() => server.stdout.includes('stopping'), 'the first to be seen');
    const begin = Date.now();
    assert.equal(await server.stop('SIGINT'), 130);
    assert.ok(Date.now() - begin < 2000);
    await running;
});

await test('a port in use is said, and what to do', async () => {
    const server = await serve(['--no-disk']);
    const { port } = new URL(server.url);
    const second = await serveFails(['--no-disk'], { port });
    assert.equal(second.code, 1);
    assert.match(second.stderr, new RegExp(`port ${port} of 127\\.0\\.0\\.1 is in use.*--port`));
    assert.equal((await fetch(`${server.url}/health`)).status, 200);
    await server.stop();
});

await test('a second server on the same cache directory is refused, and what to do', async () => {
    const dir = temporaryDir();
    const server = await serve(['--cache-dir', dir]);
    const second = await serveFails(['--cache-dir', dir]);
    assert.equal(second.code, 1);
    assert.ok(second.stderr.includes(dir), second.stderr);
    assert.match(second.stderr, /--cache-dir.*--no-disk/);
    assert.equal((await complete(server, { prompt: 'a', max_tokens: 1 })).status, 200);
    assert.equal(await server.stop(), 0);
    const third = await serve(['--cache-dir', dir]); // the lock went with its owner
    assert.equal(await third.stop(), 0);
});

await test('a directory that can not be had is a named state, and serving goes on', async () => {
    const dir = temporaryDir();
    writeFileSync(join(dir, 'file'), 'in the way');
    const server = await serve(['--cache-dir', join(dir, 'file', 'cache')]);
    assert.match(server.stdout, /no disk \(io_error\): .*file\/cache/);
    assert.match(server.stderr, /warning: no disk cache \(io_error\)/);
    assert.equal((await complete(server, { prompt: 'a', max_tokens: 1 })).status, 200);
    assert.equal((await (await fetch(`${server.url}/health`)).json()).disk, 'io_error');
    const values = await metrics(server);
    assert.equal(values['firn_disk_state{state="io_error"}'], 1);
    assert.equal(values['firn_disk_state{state="ok"}'], 0);
    await server.stop();
});

if (process.getuid() === 0) {
    skip('a directory without write permission is the state read_only', 'root may write everywhere');
} else {
    await test('a directory without write permission is the state read_only', async () => {
        const dir = join(temporaryDir(), 'locked');
        mkdirSync(dir, { mode: 0o500 });
        const server = await serve(['--cache-dir', join(dir, 'cache')]);
        assert.match(server.stdout, /no disk \(read_only\)/);
        assert.equal((await metrics(server))['firn_disk_state{state="read_only"}'], 1);
        await server.stop();
    });
}

await test('without a home the disk is off, and it is said how to turn it on', async () => {
    const server = await serve([], { env: { HOME: '', XDG_CACHE_HOME: '' } });
    assert.match(server.stdout, /no disk \(disabled\): .*--cache-dir/);
    await server.stop();
});

await test('XDG_CACHE_HOME is where the cache goes by default', async () => {
    const home = temporaryDir();
    const server = await serve([], { env: { XDG_CACHE_HOME: home } });
    assert.ok(server.stdout.includes(`in ${join(home, 'firn')}`), server.stdout);
    await server.stop();
    assert.ok(statSync(join(home, 'firn')).isDirectory());
});

await test('a config file sets flags, and the command line wins', async () => {
    const file = join(temporaryDir(), 'serve.conf');
    writeFileSync(file, '# test\nno-disk = true\nctx = 64\napi-key = fromfile\n');
    const server = await serve(['--config', file, '--ctx', '128']);
    const headers = { Authorization: 'Bearer fromfile' };
    const models = await (await fetch(`${server.url}/v1/models`, { headers })).json();
    assert.equal(models.data[0].max_model_len, 128);
    const long = await post(server, '/v1/completions', { prompt: Array(200).fill(5) }, { headers });
    assert.equal(long.json.error.code, 'context_length_exceeded');
    await server.stop();
});

await test('wrong flags end with status 2 and a hint', async () => {
    const wrong = [['--threads', 'x'], ['--kv', 'q3'], ['--no-such-flag'], ['--api-key', ''], ['--stop-seconds', '-1']];
    for (const flags of wrong) {
        const ended = await serveFails(flags);
        assert.equal(ended.code, 2, flags.join(' '));
        assert.match(ended.stderr, /firn serve --help/);
    }
});

await test('a missing model and a file that is none are said', async () => {
    const missing = await serveFails(['--no-disk', '-m', '/nonexistent.gguf']);
    assert.equal(missing.code, 1);
    assert.match(missing.stderr, /nonexistent\.gguf/);
    const file = join(temporaryDir(), 'not.gguf');
    writeFileSync(file, 'GGUF but not really');
    const wrong = await serveFails(['--no-disk', '-m', file]);
    assert.equal(wrong.code, 1);
});

await test('a signal at any moment of the start ends it', async () => {
    const codes = new Set();
    for (let ms = 0; ms < 300; ms += 25) {
        const server = start(['--no-disk']);
        await sleep(ms);
        const begin = Date.now();
        const code = await server.stop('SIGINT');
        assert.ok(Date.now() - begin < 5000, `after ${ms} ms`);
        assert.ok(code === 0 || code === 130 || server.signal === 'SIGINT', `after ${ms} ms: ${code} ${server.signal}`);
        codes.add(code);
    }
    assert.ok(codes.size > 1); // before it was ready and after
});
finish();
