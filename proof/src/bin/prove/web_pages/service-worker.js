// Sends what its page asks for, with and without a preflight request.
'use strict';

addEventListener('message', async (message) => {
  const { url, body } = message.data;
  const post = (options) => fetch(url, { method: 'POST', body, ...options });
  const [first] = await Promise.allSettled([
    post({ headers: { 'content-type': 'application/json' } }).then(async (r) => ({ status: r.status, read: await r.text() })),
    post({ mode: 'no-cors' }),
  ]);
  message.ports[0].postMessage(first.value ?? {});
});
