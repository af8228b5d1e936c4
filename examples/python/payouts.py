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
UNSAID_EVERY = 4  # every so many payments nothing more is said after "submitted": the chain closes their nonces


class Refused(Exception):
    """The answer is no, and repeating the call does not help."""


class Lost(Exception):
    """No answer came, or none that a node gives: the call may have been heard."""


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
            except (OSError, ValueError) as error:  # no answer, or one that is no JSON
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
        try:
            _, answer = post(self.url, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        except (OSError, ValueError) as error:
            raise Lost(f"{method}: {error}") from error
        if answer.get("error"):
            raise Refused(f"{method}: {answer['error']['message']}")
        if "result" not in answer:
            raise Lost(f"{method}: {answer}")
        return answer["result"]

    def send(self, raw, tx_hash):
        """Hands the bytes over, the same ones again while answers are lost: they may have arrived, and then the nonce
        is used whatever anybody says."""
        deadline, was_lost = time.monotonic() + PATIENCE_S, False
        while True:
            try:
                self.call("eth_sendRawTransaction", raw)
                return
            except Lost:
                was_lost = True
                if time.monotonic() > deadline:
                    raise
            except Refused:
                # A node refuses what it has already.
                if not was_lost or self.call("eth_getTransactionByHash", tx_hash) is None:
                    raise
                return
            time.sleep(PAUSE_S)


def pay(lender, node, account, transfer, says_used):
    """One payment: its nonce is used, free for the next one, or kept for what may have been sent."""
    lent = lender.allocate()
    signed = account.sign_transaction({**transfer, "nonce": lent["nonce"]})
    tx_hash = "0x" + signed.hash.hex().removeprefix("0x")
    raw = "0x" + signed.raw_transaction.hex().removeprefix("0x")
    # A real business writes the signed bytes to its own database here, before anything else: a process that dies
    # after the next line must be able to send them again, because nobody else may ever use this nonce.
    lender.submitted(lent, tx_hash)
    try:
        # Lost, it may have arrived: the nonce is not free, and the bytes that were written down are sent again later.
        node.send(raw, tx_hash)
    except Refused as refused:
        # Given back, which is believed only if no node shows anything of the transaction.
        lender.recyclable(lent, str(refused))
        raise
    if says_used:
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
        paid = [pay(lender, node, account, transfer, number % UNSAID_EVERY != 0) for number in range(args.count)]
    except (Refused, Lost) as failed:
        sys.exit(f"payouts: {failed}")
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
