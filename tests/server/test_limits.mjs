// Keys, queues, times: servers that are started with narrow limits.
import assert from 'node:assert/strict';
import { connect } from 'node:net';
import { complete, events, finish, metrics, post, raw, serve, sleep, test, until } from './harness.mjs';

const key = 'sécret-1';
const headers = { Authorization: 'Bearer k1' };
const narrow = await serve([
    '--no-disk', '--max-batch', '1', '--queue', '1', '--cors', 'https://a.example', '--idle-seconds', '1',
    '--connections', '8', '--ram-budget', '64M',
], { env: { FIRN_API_KEY: 'k1' } });

await test('without the key everything but /health is a 401', async () => {
    assert.equal((await fetch(`${narrow.url}/health`)).status, 200);
    for (const path of ['/', '/metrics', '/v1/models', '/nothing']) {
        const response = await fetch(narrow.url + path);
        assert.equal(response.status, 401, path);
        assert.equal(response.headers.get('www-authenticate'), 'Bearer');
        assert.equal((await response.json()).error.code, 'missing_api_key');
    }
    for (const wrong of ['Bearer k2', 'Bearer k', 'Bearer k11', 'Bearer ', 'Basic k1', 'k1']) {
        const { status, json } = await complete(narrow, { prompt: 'a' }, { headers: { Authorization: wrong } });
        assert.equal(status, 401, wrong);
        assert.equal(json.error.type, 'authentication_error');
    }
    for (const right of ['Bearer k1', 'bearer k1']) {
        const options = { headers: { Authorization: right } };
        const { status } = await complete(narrow, { prompt: 'a', max_tokens: 1 }, options);
        assert.equal(status, 200, right);
    }
});

await test('the key is not printed', () => {
    assert.ok(!narrow.stdout.includes('k1'));
    assert.ok(narrow.stdout.includes('$FIRN_API_KEY'));
});

await test('only the origin that was named gets CORS headers', async () => {
    const ask = (origin) => fetch(`${narrow.url}/v1/completions`, {
        method: 'OPTIONS',
        headers: {
            Origin: origin,
            'Access-Control-Request-Method': 'POST',
            'Access-Control-Request-Headers': 'authorization,x-stainless-os',
        },
    });
    const allowed = await ask('https://a.example');
    assert.equal(allowed.status, 204);
    assert.equal(allowed.headers.get('access-control-allow-origin'), 'https://a.example');
    assert.equal(allowed.headers.get('access-control-allow-headers'), 'authorization,x-stainless-os');
    const other = await ask('https://b.example');
    assert.equal(other.headers.get('access-control-allow-origin'), null);
    const refused = await fetch(`${narrow.url}/v1/models`, { headers: { Origin: 'https://a.example' } });
    assert.equal(refused.status, 401); // readable by the page: it must learn that a key is missing
    assert.equal(refused.headers.get('access-control-allow-origin'), 'https://a.example');
});

await test('a full queue is a 429 that says when to come back, and does not disturb the others', async () => {
    const controller = new AbortController();
    const running = complete(narrow, { prompt: 'a', max_tokens: 8000 }, { headers, signal: controller.signal })
        .catch(() => null);
    const gauge = async (name) => (await metrics(narrow, headers))[name];
    await until(async () => await gauge('firn_requests_running') === 1, 'the first to run');
    const waiting = complete(narrow, { prompt: 'b', max_tokens: 1 }, { headers });
    await until(async () => await gauge('firn_requests_waiting') === 1, 'the second to wait');
    for (const stream of [false, true]) {
        const refused = await complete(narrow, { prompt: 'c', stream }, { headers });
        assert.equal(refused.status, 429);
        assert.equal(refused.headers.get('retry-after'), '1');
        assert.equal(refused.json.error.type, 'rate_limit_error');
    }
    controller.abort();
    await running;
    assert.equal((await waiting).status, 200);
});

await test('an answer may take longer than a connection may be idle', async () => {
    for (const stream of [false, true]) {
        const controller = new AbortController();
        const running = complete(narrow, { prompt: 'a', max_tokens: 8000 }, { headers, signal: controller.signal })
            .catch(() => null);
        await until(async () => (await metrics(narrow, headers)).firn_requests_running === 1, 'the first to run');
        const begin = performance.now();
        const waiting = complete(narrow, { prompt: 'b', max_tokens: 2, stream }, { headers });
        await sleep(1600); // nothing is sent to the waiting one for longer than --idle-seconds
        controller.abort();
        await running;
        const { status, text } = await waiting;
        assert.equal(status, 200);
        assert.ok(performance.now() - begin >= 1600);
        assert.match(text, stream ? /\[DONE\]/ : /"completion_tokens":2/);
    }
});

await test('an idle connection is closed', async () => {
    const { hostname, port } = new URL(narrow.url);
    const begin = Date.now();
    await new Promise((done) => {
        const socket = connect(Number(port), hostname, () => socket.write('GET /health HTTP/1.1\r\nHost: local'));
        socket.on('close', done);
        socket.on('error', () => null);
        socket.resume();
    });
    assert.ok(Date.now() - begin < 6000);
});

await test('connections beyond the limit do not get in, and it recovers', async () => {
    const { hostname, port } = new URL(narrow.url);
    const sockets = Array.from({ length: 30 }, () => connect(Number(port), hostname).on('error', () => null));
    await sleep(300);
    sockets.forEach((socket) => socket.destroy());
    const status = async () => (await fetch(`${narrow.url}/health`).catch(() => ({}))).status;
    await until(async () => await status() === 200, 'a free connection');
});

await test('the server with narrow limits stops cleanly', async () => {
    assert.equal(await narrow.stop('SIGINT'), 0);
    assert.equal(narrow.stderr, '');
});

const hurried = await serve(['--no-disk', '--request-seconds', '1', '--api-key', key, '--max-body', '1K']);
const withKey = { headers: { Authorization: `Bearer ${Buffer.from(key).toString('latin1')}` } };

await test('a request beyond its time is a 504, in a stream an error event without [DONE]', async () => {
    const whole = await complete(hurried, { prompt: 'a', max_tokens: 8000 }, withKey);
    assert.equal(whole.status, 504);
    assert.equal(whole.json.error.code, 'request_timeout');
    const stream = await complete(hurried, { prompt: 'a', max_tokens: 8000, stream: true }, withKey);
    assert.equal(stream.status, 200);
    const list = events(stream.text);
    assert.equal(list.at(-1).error.code, 'request_timeout');
    assert.ok(list.length > 2);
    const values = await until(async () => {
        const now = await metrics(hurried, withKey.headers);
        return now.firn_requests_running === 0 ? now : null;
    }, 'the engine to be idle');
    assert.equal(values.firn_request_timeouts_total, 2);
});

await test('far too large a body is cut off', async () => {
    const chunk = `1000\r\n${'x'.repeat(4096)}\r\n`;
    const reply = await raw(hurried, 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n' +
        `Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n${chunk.repeat(20)}`).catch(() => '');
    assert.doesNotMatch(reply, / 200 /);
    assert.equal((await post(hurried, '/v1/completions', { prompt: 'a', max_tokens: 1 }, withKey)).status, 200);
});
await hurried.stop();

const small = await serve(['--no-disk', '--ram-budget', '1M']);
await test('a prompt that the memory could never hold is a 400 with the figures; a smaller one is served', async () => {
    const large = await complete(small, { prompt: Array(4000).fill(5) });
    assert.equal(large.status, 400);
    assert.equal(large.json.error.code, 'context_length_exceeded');
    assert.equal(large.json.error.param, 'prompt');
    assert.match(large.json.error.message, /\d{4,}/);
    assert.equal((await complete(small, { prompt: Array(100).fill(5) })).status, 200);
});

await test('requests that do not fit into memory together wait for each other', async () => {
    const asks = Array.from({ length: 6 }, (_, i) => ({ prompt: Array(100 + i).fill(20 + i), max_tokens: 20 }));
    const answers = await Promise.all(asks.map((ask) => complete(small, ask)));
    assert.deepEqual(answers.map((answer) => answer.json.error?.message ?? 'ok'), Array(6).fill('ok'));
});
await small.stop();
finish();
