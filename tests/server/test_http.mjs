// The HTTP API against the real server, engine and built-in model.
import assert from 'node:assert/strict';
import { request } from 'node:http';
import { connect } from 'node:net';
import {
    complete, events, finish, head, metrics, post, raw, serve, sleep, temporaryDir, test, until, words,
} from './harness.mjs';

const server = await serve([
    '--cache-dir', temporaryDir(), '--max-batch', '4', '--max-body', '64K', '--ram-budget', '256M',
]);
const get = (path, options) => fetch(server.url + path, options);

// ---- routes and methods ----

await test('health, models and the index answer', async () => {
    const health = await (await get('/health')).json();
    assert.equal(health.status, 'ok');
    assert.equal(health.disk, 'ok');
    const models = await (await get('/v1/models')).json();
    assert.equal(models.object, 'list');
    assert.equal(models.data.length, 1);
    const one = await (await get(`/v1/models/${encodeURIComponent(models.data[0].id)}`)).json();
    assert.deepEqual(one, models.data[0]);
    assert.equal(one.max_model_len, 8192);
    assert.equal((await (await get('/')).json()).server, 'firn');
});

await test('what does not exist is a 404 with an error object', async () => {
    for (const path of ['/nothing', '/v1', '/v1/completions/x', '/v1/models/other', '/v1/models/', '/metricsx']) {
        const response = await get(path);
        assert.equal(response.status, 404, path);
        const { error } = await response.json();
        assert.equal(error.type, 'not_found_error', path);
        assert.ok(error.message.length > 0);
    }
});

await test('other methods are a 405 that names those there are', async () => {
    const wrong = await get('/v1/completions');
    assert.equal(wrong.status, 405);
    assert.equal(wrong.headers.get('allow'), 'POST, OPTIONS');
    await wrong.text();
    for (const method of ['POST', 'PUT', 'DELETE', 'PATCH']) {
        const response = await get('/health', { method, body: method === 'DELETE' ? undefined : 'x' });
        assert.equal(response.status, 405, method);
        assert.equal(response.headers.get('allow'), 'GET, HEAD, OPTIONS');
        assert.equal((await response.json()).error.code, 'method_not_allowed');
    }
});

await test('HEAD answers like GET without a body', async () => {
    const response = await get('/health', { method: 'HEAD' });
    assert.equal(response.status, 200);
    assert.ok(Number(response.headers.get('content-length')) > 0);
    assert.equal(await response.text(), '');
});

await test('OPTIONS names the methods and, by default, no origin', async () => {
    const response = await get('/v1/completions', { method: 'OPTIONS', headers: { Origin: 'https://a.example' } });
    assert.equal(response.status, 204);
    assert.equal(response.headers.get('allow'), 'POST, OPTIONS');
    assert.equal(response.headers.get('access-control-allow-origin'), null);
});

await test('a name that is not this machine is refused as Host', async () => {
    const status = await new Promise((done, fail) => {
        request(`${server.url}/v1/models`, { headers: { Host: 'rebound.example:8080' } }, (response) => {
            response.resume();
            done(response.statusCode);
        }).on('error', fail).end();
    });
    assert.equal(status, 403);
});

// ---- bodies ----

await test('a body that is not declared as JSON is a 415', async () => {
    for (const type of [undefined, 'text/plain', 'application/x-www-form-urlencoded', 'application/jsonx']) {
        const headers = type === undefined ? {} : { 'Content-Type': type };
        const response = await get('/v1/completions', { method: 'POST', body: Buffer.from('{"prompt":"a"}'), headers });
        assert.equal(response.status, 415, String(type));
        assert.equal((await response.json()).error.code, 'unsupported_media_type');
    }
    const { status } = await complete(server, { prompt: 'a', max_tokens: 1 },
        { headers: { 'Content-Type': 'Application/JSON; charset=utf-8' } });
    assert.equal(status, 200);
});

await test('a POST without a body is a 411', async () => {
    const reply = await raw(server, 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n' +
        'Content-Type: application/json\r\nConnection: close\r\n\r\n');
    assert.match(reply, /^HTTP\/1\.1 411 /);
});

await test('a body over the limit is a 413, announced or not, and the next request works', async () => {
    const large = JSON.stringify({ prompt: 'x'.repeat(100000) });
    const announced = await post(server, '/v1/completions', large);
    assert.equal(announced.status, 413);
    assert.equal(announced.json.error.code, 'body_too_large');
    const chunked = await get('/v1/completions', {
        method: 'POST', headers: { 'Content-Type': 'application/json' }, duplex: 'half',
        body: new ReadableStream({ start(c) { c.enqueue(Buffer.from(large)); c.close(); } }),
    });
    assert.equal(chunked.status, 413);
    await chunked.text();
    const waiting = await raw(server, `${head('/v1/completions', 100000)}Expect: 100-continue\r\n\r\n`);
    assert.match(waiting, /^HTTP\/1\.1 413 /); // and not "100 Continue"
    assert.equal((await complete(server, { prompt: 'a', max_tokens: 1 })).status, 200);
});

await test('headers without end are refused', async () => {
    const reply = await raw(server, `GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: ${'x'.repeat(200000)}\r\n\r\n`);
    assert.match(reply, /^HTTP\/1\.1 4(13|31) /);
});

await test('garbage instead of HTTP does not harm', async () => {
    const tls = '\x16\x03\x01\x02\x00';
    for (const bytes of ['\0\0\0\0\r\n\r\n', 'GET\r\n\r\n', tls, 'POST /v1/completions HTTP/9.9\r\n\r\n']) {
        await raw(server, bytes, 300).catch(() => '');
    }
    assert.equal((await get('/health')).status, 200);
});

await test('nesting without end is a 400', async () => {
    for (const depth of [2000, 30000]) {
        const nested = '['.repeat(depth) + ']'.repeat(depth);
        const { status } = await post(server, '/v1/completions', `{"prompt":"a","x":${nested}}`);
        assert.ok(depth === 2000 ? [200, 400].includes(status) : status === 400, `${depth}: ${status}`);
    }
});

await test('a connection goes on after a refusal', async () => {
    const good = '{"prompt":"a","max_tokens":1}';
    const reply = await raw(server, `${head('/v1/completions', 1)}\r\n{${head('/nothing', 2)}\r\n{}` +
        `${head('/v1/completions', good.length)}Connection: close\r\n\r\n${good}`, 10000);
    assert.deepEqual(reply.match(/HTTP\/1\.1 \d+/g), ['HTTP/1.1 400', 'HTTP/1.1 404', 'HTTP/1.1 200']);
});

await test('wrong fields are a 400 that names them', async () => {
    const cases = [
        ['{', null],
        [{}, 'prompt'],
        [{ prompt: 5 }, 'prompt'],
        [{ prompt: 'a', temperature: 'hot' }, 'temperature'],
        [{ prompt: 'a', n: 2 }, 'n'],
        [{ prompt: 'a', top_p: 2 }, 'top_p'],
        [{ prompt: 'a', max_tokens: 1e30 }, 'max_tokens'],
        [{ prompt: 'a', stop: Array(17).fill('x') }, 'stop'],
        [{ prompt: 'a', logit_bias: { x: 1 } }, 'logit_bias'],
    ];
    for (const [body, param] of cases) {
        const { status, json } = await post(server, '/v1/completions', body);
        assert.equal(status, 400, JSON.stringify(body));
        assert.equal(json.error.type, 'invalid_request_error');
        assert.equal(json.error.param, param, JSON.stringify(body));
    }
    const messages = [{ role: 'user', content: [{ type: 'image_url' }] }];
    const chat = await post(server, '/v1/chat/completions', { messages });
    assert.equal(chat.status, 400);
    assert.equal(chat.json.error.param, 'messages');
});

await test('what only the engine can know is a 400 too', async () => {
    const unknown = await complete(server, { prompt: [1, 2, 999999] });
    assert.equal(unknown.status, 400);
    const bias = await complete(server, { prompt: 'a', logit_bias: { 999999: 5 } });
    assert.equal(bias.status, 400);
    const long = await complete(server, { prompt: Array(9000).fill(5) });
    assert.equal(long.status, 400);
    assert.equal(long.json.error.code, 'context_length_exceeded');
    assert.match(long.json.error.message, /9000.*8192|8192.*9000/);
});

// ---- answers ----

const prompt = 'My dear sister,';

await test('a greedy completion is the same each time, for text and for its token ids', async () => {
    const first = await complete(server, { prompt, max_tokens: 8, logprobs: 0 });
    assert.equal(first.status, 200);
    assert.equal(first.json.object, 'text_completion');
    assert.equal(first.json.choices[0].finish_reason, 'length');
    assert.equal(first.json.usage.completion_tokens, 8);
    assert.equal(first.json.usage.total_tokens, first.json.usage.prompt_tokens + 8);
    assert.equal(first.json.choices[0].logprobs.tokens.join(''), first.json.choices[0].text);
    const again = await complete(server, { prompt: [prompt], max_tokens: 8 });
    assert.equal(again.json.choices[0].text, first.json.choices[0].text);
    assert.equal(again.json.system_fingerprint, first.json.system_fingerprint);
    assert.notEqual(again.json.id, first.json.id);
});

await test('a stream has a chunk for each token and the same text', async () => {
    const whole = await complete(server, { prompt, max_tokens: 8 });
    const stream = await complete(server,
        { prompt, max_tokens: 8, stream: true, stream_options: { include_usage: true } });
    assert.match(stream.headers.get('content-type'), /^text\/event-stream/);
    const list = events(stream.text);
    assert.equal(list.pop(), '[DONE]');
    const usage = list.pop();
    assert.deepEqual(usage.choices, []);
    assert.equal(usage.usage.completion_tokens, 8);
    assert.equal(typeof usage.firn.reason, 'string');
    const last = list.pop();
    assert.equal(last.choices[0].finish_reason, 'length');
    assert.equal(list.length, 8);
    assert.ok(list.every((event) => event.id === usage.id && event.usage === undefined));
    assert.ok(list.every((event) => event.choices[0].finish_reason === null));
    assert.equal(list.map((event) => event.choices[0].text).join(''), whole.json.choices[0].text);
});

await test('a stream is sent while it is made', async () => {
    const response = await get('/v1/completions', {
        method: 'POST', headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({ prompt, max_tokens: 1000, stream: true }),
    });
    const times = [];
    for await (const part of response.body) {
        times.push(performance.now());
        assert.ok(part.length > 0);
    }
    assert.ok(times.length >= 20, `${times.length} reads`);
    const [quarter, all] = [times[times.length >> 2] - times[0], times.at(-1) - times[0]];
    assert.ok(quarter < all * 0.6, `a quarter of the reads took ${quarter} of ${all} ms`);
});

await test('an HTTP/1.0 client gets the stream unchunked and the connection closed', async () => {
    const body = JSON.stringify({ prompt, max_tokens: 3, stream: true, temperature: 0 });
    const reply = await raw(server, `${head('/v1/completions', body.length, '1.0')}\r\n${body}`, 10000);
    const [headers, rest] = reply.split('\r\n\r\n');
    assert.doesNotMatch(headers, /chunked/i);
    assert.equal(events(rest).length, 5);
});

await test('a stop string ends the answer and is not part of it', async () => {
    const whole = (await complete(server, { prompt, max_tokens: 12 })).json.choices[0].text;
    const stop = whole.slice(6, 12);
    const { json } = await complete(server, { prompt, max_tokens: 12, stop: ['never there', stop] });
    assert.equal(json.choices[0].finish_reason, 'stop');
    assert.equal(json.choices[0].text, whole.slice(0, whole.indexOf(stop)));
    const stream = events((await complete(server, { prompt, max_tokens: 12, stop, stream: true })).text);
    assert.equal(stream.pop(), '[DONE]');
    assert.equal(stream.map((event) => event.choices[0].text).join(''), json.choices[0].text);
});

await test('logprobs: chosen and best, streamed and whole', async () => {
    const { json } = await complete(server, { prompt, max_tokens: 3, logprobs: 5 });
    const { logprobs } = json.choices[0];
    assert.equal(logprobs.tokens.length, 3);
    const [first, second] = logprobs.tokens;
    assert.deepEqual(logprobs.text_offset, [0, first.length, first.length + second.length]);
    logprobs.top_logprobs.forEach((top, i) => {
        assert.equal(Object.keys(top).length, 5);
        assert.equal(Math.max(...Object.values(top)), logprobs.token_logprobs[i]); // greedy chose the best
    });
    const stream = events((await complete(server, { prompt, max_tokens: 3, logprobs: 5, stream: true })).text);
    const streamed = stream.flatMap((event) => event.choices?.[0].logprobs?.token_logprobs ?? []);
    assert.deepEqual(streamed, logprobs.token_logprobs);
});

await test('a seed makes sampling repeatable; without one answers differ', async () => {
    const ask = (seed) => complete(server, { prompt, max_tokens: 12, temperature: 1.5, seed });
    const [a, b, c] = [await ask(7), await ask(7), await ask(8)];
    assert.equal(a.json.choices[0].text, b.json.choices[0].text);
    assert.notEqual(a.json.choices[0].text, c.json.choices[0].text);
});

await test('logit_bias forces a token and forbids it', async () => {
    const tokens = async (logit_bias) => (await complete(server, { prompt, max_tokens: 3, logit_bias, logprobs: 0 }))
        .json.choices[0].logprobs.tokens;
    const plain = await tokens({});
    const forced = await tokens({ 1234: 100 });
    assert.deepEqual(forced, Array(3).fill(forced[0]));
    assert.notEqual(forced[0], plain[0]);
    assert.deepEqual(await tokens({ 1234: -100 }), plain);
    // Half of the vocabulary forbidden, then the other half: at least one of them has the first choice.
    const half = (from) => Object.fromEntries(Array.from({ length: 1024 }, (_, i) => [from + i, -100]));
    const [low, high] = [await tokens(half(0)), await tokens(half(1024))];
    assert.notDeepEqual(low[0], high[0]);
    assert.ok(low[0] === plain[0] || high[0] === plain[0]);
});

await test('chat answers, whole and streamed', async () => {
    const messages = [
        { role: 'system', content: 'Be brief.' }, { role: 'user', content: [{ type: 'text', text: 'Hello' }] },
    ];
    const body = { messages, max_tokens: 6, temperature: 0, logprobs: true, top_logprobs: 2 };
    const whole = await post(server, '/v1/chat/completions', body);
    assert.equal(whole.status, 200);
    assert.equal(whole.json.object, 'chat.completion');
    const { message, logprobs } = whole.json.choices[0];
    assert.equal(message.role, 'assistant');
    assert.equal(logprobs.content.length, whole.json.usage.completion_tokens);
    assert.equal(logprobs.content[0].top_logprobs.length, 2);
    assert.equal(Buffer.from(logprobs.content[0].bytes).toString(), logprobs.content[0].token);
    const list = events((await post(server, '/v1/chat/completions', { ...body, stream: true })).text);
    assert.equal(list.pop(), '[DONE]');
    assert.equal(list[0].choices[0].delta.role, 'assistant');
    assert.equal(list.map((event) => event.choices[0].delta.content ?? '').join(''), message.content);
    assert.equal(list.at(-1).choices[0].finish_reason, whole.json.choices[0].finish_reason);
});

// ---- the cache told truly ----

await test('cached_tokens are the tokens that were not computed', async () => {
    const text = words(1, 200);
    const before = await metrics(server);
    const first = await complete(server, { prompt: text, cache_namespace: 'truth' });
    const n = first.json.usage.prompt_tokens;
    assert.equal(first.json.usage.prompt_tokens_details.cached_tokens, 0);
    assert.deepEqual([first.json.firn.ram, first.json.firn.disk, first.json.firn.computed], [0, 0, n]);
    assert.equal(first.json.firn.reason, 'no_prefix');
    assert.equal(first.json.firn.first_divergence, 0);
    const second = await complete(server, { prompt: text, cache_namespace: 'truth' });
    assert.equal(second.json.usage.prompt_tokens_details.cached_tokens, n); // with the logits behind them
    assert.equal(second.json.firn.ram, n);
    assert.equal(second.json.firn.reason, 'ok');
    assert.equal(second.json.choices[0].text, first.json.choices[0].text);
    const after = await metrics(server);
    const grown = (name) => after[name] - before[name];
    assert.equal(grown('firn_prompt_tokens_total'), 2 * n);
    assert.equal(grown('firn_prompt_tokens_by_source_total{source="computed"}'), n);
    assert.equal(grown('firn_prompt_tokens_by_source_total{source="ram"}'), n);
    assert.equal(grown('firn_prefix_logits_hits_total'), 1);
    assert.equal(grown('firn_prompt_tokens_by_source_total{source="disk"}'), 0);
    assert.equal(grown('firn_prefix_reasons_total{reason="no_prefix"}'), 1);
});

await test('a prompt that differs is told where, and by which tokens', async () => {
    const tokens = Array.from({ length: 150 }, (_, i) => 300 + ((i * 7) % 500));
    const other = [...tokens];
    other[100] = 1234;
    await complete(server, { prompt: tokens, cache_namespace: 'differs' });
    const { json } = await complete(server, { prompt: other, cache_namespace: 'differs' });
    assert.equal(json.usage.prompt_tokens_details.cached_tokens, 100);
    assert.equal(json.firn.reason, 'diverged');
    assert.equal(json.firn.first_divergence, 100);
    assert.equal(json.firn.difference.stored.id, tokens[100]);
    assert.equal(json.firn.difference.prompt.id, 1234);
    assert.ok(json.firn.difference.prompt.text.length > 0);
});

await test('namespaces do not see each other, whether named in the body or in the header', async () => {
    const text = words(2, 120);
    const cached = async (options, headers) => {
        const { json } = await complete(server, { prompt: text, max_tokens: 1, ...options }, { headers });
        return json.usage.prompt_tokens_details.cached_tokens;
    };
    assert.equal(await cached({ cache_namespace: 'a' }), 0);
    assert.equal(await cached({ cache_namespace: 'b' }), 0);
    assert.equal(await cached({}), 0);
    assert.ok(await cached({ cache_namespace: 'a' }) > 0);
    assert.ok(await cached({}, { 'X-Firn-Namespace': 'b' }) > 0);
    const clash = await complete(server, { prompt: text, cache_namespace: 'a' },
        { headers: { 'X-Firn-Namespace': 'b' } });
    assert.equal(clash.status, 400);
    assert.equal(clash.json.error.param, 'cache_namespace');
});

await test('cache_prompt false neither reads nor fills the cache', async () => {
    const text = words(3, 120);
    for (let i = 0; i < 2; i++) {
        const { json } = await complete(server, { prompt: text, cache_prompt: false, max_tokens: 1 });
        assert.equal(json.usage.prompt_tokens_details.cached_tokens, 0);
        assert.equal(json.firn.reason, 'disabled');
    }
    const { json } = await complete(server, { prompt: text, max_tokens: 1 });
    assert.equal(json.usage.prompt_tokens_details.cached_tokens, 0);
});

await test('requests in parallel get what each gets alone', async () => {
    const asks = [4, 5, 6, 7, 8, 9].map((seed) => (
        { prompt: words(seed, 30 + 10 * seed), max_tokens: 6, cache_prompt: false, logprobs: 0 }));
    const alone = [];
    for (const ask of asks) {
        alone.push((await complete(server, ask)).json.choices[0]);
    }
    const together = await Promise.all(asks.map((ask) => complete(server, ask)));
    together.forEach((answer, i) => assert.deepEqual(answer.json.choices[0], alone[i]));
});

// ---- clients that leave ----

const cancelled = 'firn_requests_total{outcome="cancelled"}';
const idle = async () => {
    const now = await metrics(server);
    return now.firn_requests_running === 0 && now.firn_requests_waiting === 0 ? now : null;
};
// Metrics once the engine is idle and one more request than before was cancelled.
const oneCancelled = (before) => until(async () => {
    const now = await idle();
    return now !== null && now[cancelled] > before[cancelled] ? now : null;
}, 'the request to be cancelled');

await test('a client that leaves a stream is cancelled', async () => {
    const before = await metrics(server);
    const controller = new AbortController();
    const response = await get('/v1/completions', {
        method: 'POST', headers: { 'Content-Type': 'application/json' }, signal: controller.signal,
        body: JSON.stringify({ prompt, max_tokens: 8000, stream: true }),
    });
    await response.body.getReader().read();
    controller.abort();
    const after = await oneCancelled(before);
    assert.equal(after[cancelled] - before[cancelled], 1);
    assert.equal(after.firn_client_disconnects_total - before.firn_client_disconnects_total, 1);
});

await test('a client that leaves while it waits for a whole answer is cancelled', async () => {
    const before = await metrics(server);
    const controller = new AbortController();
    const waiting = complete(server, { prompt, max_tokens: 8000 }, { signal: controller.signal });
    await until(async () => (await metrics(server)).firn_requests_running === 1, 'the request to run');
    controller.abort();
    await assert.rejects(waiting);
    const after = await oneCancelled(before);
    assert.equal(after[cancelled] - before[cancelled], 1);
    assert.equal(after['firn_http_requests_total{route="completions",status="0"}'] ?? 0,
        (before['firn_http_requests_total{route="completions",status="0"}'] ?? 0) + 1);
});

await test('a client that leaves with bytes of it unread is cancelled', async () => {
    const before = await metrics(server);
    const body = JSON.stringify({ prompt, max_tokens: 8000 });
    const { hostname, port } = new URL(server.url);
    const socket = connect(Number(port), hostname, () => {
        socket.write(`${head('/v1/completions', body.length)}\r\n${body}`);
        socket.write('GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n'); // pipelined behind it
    });
    await until(async () => (await metrics(server)).firn_requests_running === 1, 'the request to run');
    socket.destroy();
    const after = await oneCancelled(before);
    assert.equal(after.firn_client_disconnects_total - before.firn_client_disconnects_total, 1);
});

await test('many clients that leave at random leave nothing behind', async () => {
    await Promise.all(Array.from({ length: 24 }, async (_, i) => {
        await sleep(7 * i);
        await complete(server, { prompt: words(100 + i, 40), max_tokens: 400, stream: i % 2 === 0 },
            { signal: AbortSignal.timeout(20 + 13 * i) }).catch(() => null);
    }));
    await until(() => idle(), 'the engine to be idle');
    assert.equal((await complete(server, { prompt, max_tokens: 2 })).status, 200);
    await until(async () => (await metrics(server)).firn_http_connections < 16, 'connections to be closed');
});

await test('metrics count each route and status', async () => {
    const before = await metrics(server);
    await complete(server, { prompt, max_tokens: 1 });
    await complete(server, { prompt: 5 });
    await (await get('/nothing')).text();
    const after = await metrics(server);
    const count = (values, labels) => values[`firn_http_requests_total{${labels}}`] ?? 0;
    const grown = (labels) => count(after, labels) - count(before, labels);
    assert.equal(grown('route="completions",status="200"'), 1);
    assert.equal(grown('route="completions",status="400"'), 1);
    assert.equal(grown('route="other",status="404"'), 1);
    assert.equal(after.firn_time_to_first_token_seconds_count, after.firn_request_seconds_count);
    assert.equal(after['firn_disk_state{state="ok"}'], 1);
});

await test('SIGTERM ends it with status 0', async () => {
    assert.equal(await server.stop(), 0);
    assert.match(server.stdout, /saved \d+ prefixes, 0 could not be saved/);
    assert.equal(server.stderr, '');
});
finish();
