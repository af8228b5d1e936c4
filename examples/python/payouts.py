"""A small business that pays out: it has the key, signs and sends through a node by itself, and borrows every nonce
from Lanekeeper over HTTP, so that several processes of it can run at once on one account.

    python payouts.py --api http://127.0.0.1:8645 --rpc http://127.0.0.1:8646 --key 0x… --to 0x… --count 20
"""

import argparse
import json
import sys
import time
import urllib.error
import urllib.request

from eth_account import Account

PATIENCE_S = 60  # how long a call is repeated that may be repeated
PAUSE_S = 0.2
TIP_WEI = 10**9


class Refused(Exception):
    """The answer is no, and repeating the call does not help."""


def post(url, body):
    """Posts JSON; the status and the answer."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


class Lender:
    """The nonces of one account."""

    def __init__(self, api, chain_id, account):
        self.url = f"{api}/api/v1/lanes/{chain_id}/{account}/nonces"

    def allocate(self):
        return self._call("", {})

    def submitted(self, lent, tx_hash):
        """To be said before the bytes leave: from then on nobody else gets this nonce because of the time."""
        self._call(f"/{lent['nonce']}/submitted", {"holder": lent["holder"], "txHash": tx_hash})

    def used(self, lent, tx_hash):
        self._call(f"/{lent['nonce']}/used", {"holder": lent["holder"], "txHash": tx_hash})

    def recyclable(self, lent, reason):
        self._call(f"/{lent['nonce']}/recyclable", {"holder": lent["holder"], "reason": reason})

    def _call(self, path, body):
        """Repeats what may be repeated: every mark may, and an allocation whose answer was lost comes back by
        itself."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                status, answer = post(self.url + path, body)
            except OSError as error:
                status, answer = 0, {"retryable": True, "detail": str(error)}
            if 200 <= status < 300:
                return answer
            if not answer.get("retryable") or time.monotonic() > deadline:
                raise Refused(f"{status}: {answer.get('detail')}")
            time.sleep(PAUSE_S)


class Node:
    """A node of the chain."""

    def __init__(self, url):
        self.url = url

    def call(self, method, *params):
        _, answer = post(self.url, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        if "error" in answer:
            raise Refused(f"{method}: {answer['error']['message']}")
        return answer["result"]


def pay(lender, node, account, transfer):
    """One payment: its nonce is used, or free for the next one."""
    lent = lender.allocate()
    signed = account.sign_transaction({**transfer, "nonce": lent["nonce"]})
    tx_hash = "0x" + signed.hash.hex().removeprefix("0x")
    raw = "0x" + signed.raw_transaction.hex().removeprefix("0x")
    # A real business writes the signed bytes to its own database here, before anything else: a process that dies
    # after the next line must be able to send them again, because nobody else may ever use this nonce.
    lender.submitted(lent, tx_hash)
    try:
        node.call("eth_sendRawTransaction", raw)
    except Refused as refused:
        # Given back, which is believed only if no node shows anything of the transaction.
        lender.recyclable(lent, str(refused))
        raise
    lender.used(lent, tx_hash)
    print(f"nonce {lent['nonce']}: {tx_hash}", flush=True)
    return tx_hash


def main():
    parser = argparse.ArgumentParser(description="Pays one wei to an account, so many times.")
    parser.add_argument("--api", default="http://127.0.0.1:8645", help="a node of Lanekeeper")
    parser.add_argument("--rpc", default="http://127.0.0.1:8646", help="a node of the chain")
    parser.add_argument("--key", required=True, help="the key of the account that pays")
    parser.add_argument("--to", required=True, help="who is paid")
    parser.add_argument("--count", type=int, default=20)
    args = parser.parse_args()

    node, account = Node(args.rpc), Account.from_key(args.key)
    chain_id = int(node.call("eth_chainId"), 16)
    lender = Lender(args.api, chain_id, account.address)
    transfer = {
        "type": 2, "chainId": chain_id, "to": args.to, "value": 1, "gas": 21_000,
        "maxFeePerGas": 2 * int(node.call("eth_gasPrice"), 16) + TIP_WEI, "maxPriorityFeePerGas": TIP_WEI,
    }
    try:
        paid = [pay(lender, node, account, transfer) for _ in range(args.count)]
    except Refused as refused:
        sys.exit(f"payouts: {refused}")
    print(f"paid {len(paid)} times", flush=True)
    deadline = time.monotonic() + PATIENCE_S
    for tx_hash in paid:
        while node.call("eth_getTransactionReceipt", tx_hash) is None:
            if time.monotonic() > deadline:
                sys.exit(f"payouts: {tx_hash} is not mined after {PATIENCE_S} s")
            time.sleep(PAUSE_S)
    print("all of it is on chain")


if __name__ == "__main__":
    main()
