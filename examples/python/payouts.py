"""A small payout application: it has the key, signs and sends through a node by itself, and reserves every nonce with
Lanekeeper over HTTP, so that several of its processes can pay from one account at the same time.

    python payouts.py --api http://127.0.0.1:8645 --rpc http://127.0.0.1:8646 --key 0x… --to 0x… --count 20
"""

import argparse
import json
import sys
import time
import urllib.error
import urllib.request

from eth_account import Account

RETRY_FOR_S = 60  # how long a retryable call is repeated
PAUSE_S = 0.2
TIP_WEI = 10**9
UNMARKED_EVERY = 4  # every so many payments there is no mark after "submitted": the chain closes their reservations


class Refused(Exception):
    """The call was refused, and repeating it does not help."""


class Lost(Exception):
    """No valid answer came: the call may have been executed."""


def post(url, body):
    """Posts JSON and returns the status and the answer."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


class NonceReservations:
    """The nonces of one account."""

    def __init__(self, api, chain_id, account):
        self.url = f"{api}/api/v1/lanes/{chain_id}/{account}/nonces"

    def allocate(self):
        return self._call("", {})

    def submitted(self, reserved, tx_hash):
        """Call it before the bytes leave: from then on the reservation does not expire."""
        self._call(f"/{reserved['nonce']}/submitted", {"holder": reserved["holder"], "txHash": tx_hash})

    def used(self, reserved, tx_hash):
        self._call(f"/{reserved['nonce']}/used", {"holder": reserved["holder"], "txHash": tx_hash})

    def recyclable(self, reserved, reason):
        self._call(f"/{reserved['nonce']}/recyclable", {"holder": reserved["holder"], "reason": reason})

    def _call(self, path, body):
        """Repeats retryable calls: marks are idempotent, and an allocation whose answer was lost expires by itself."""
        deadline = time.monotonic() + RETRY_FOR_S
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
        """Sends the bytes, and the same ones again while answers are lost: they may have arrived, and then the nonce
        is used in any case."""
        deadline, was_lost = time.monotonic() + RETRY_FOR_S, False
        while True:
            try:
                self.call("eth_sendRawTransaction", raw)
                return
            except Lost:
                was_lost = True
                if time.monotonic() > deadline:
                    raise
            except Refused:
                # A node refuses a transaction that it already has.
                if not was_lost or self.call("eth_getTransactionByHash", tx_hash) is None:
                    raise
                return
            time.sleep(PAUSE_S)


def pay(reservations, node, account, transfer, marks_used):
    """One payment: its nonce is used, recycled, or kept reserved for what may have been sent."""
    reserved = reservations.allocate()
    signed = account.sign_transaction({**transfer, "nonce": reserved["nonce"]})
    tx_hash = "0x" + signed.hash.hex().removeprefix("0x")
    raw = "0x" + signed.raw_transaction.hex().removeprefix("0x")
    # A real application stores the signed bytes in its own database here, before anything else: a process that dies
    # after the next line must be able to send them again, because a submitted nonce is not reserved again.
    reservations.submitted(reserved, tx_hash)
    try:
        # If the answer is lost, the nonce stays reserved, and the stored bytes are sent again later.
        node.send(raw, tx_hash)
    except Refused as refused:
        # Recycled, which is accepted only if no node shows the transaction.
        reservations.recyclable(reserved, str(refused))
        raise
    if marks_used:
        reservations.used(reserved, tx_hash)
    print(f"nonce {reserved['nonce']}: {tx_hash}", flush=True)
    return tx_hash


def main():
    parser = argparse.ArgumentParser(description="Pays one wei to an account, COUNT times.")
    parser.add_argument("--api", default="http://127.0.0.1:8645", help="a node of Lanekeeper")
    parser.add_argument("--rpc", default="http://127.0.0.1:8646", help="a node of the chain")
    parser.add_argument("--key", required=True, help="the key of the account that pays")
    parser.add_argument("--to", required=True, help="the recipient")
    parser.add_argument("--count", type=int, default=20)
    args = parser.parse_args()

    node, account = Node(args.rpc), Account.from_key(args.key)
    chain_id = int(node.call("eth_chainId"), 16)
    reservations = NonceReservations(args.api, chain_id, account.address)
    transfer = {
        "type": 2, "chainId": chain_id, "to": args.to, "value": 1, "gas": 21_000,
        "maxFeePerGas": 2 * int(node.call("eth_gasPrice"), 16) + TIP_WEI, "maxPriorityFeePerGas": TIP_WEI,
    }
    try:
        paid = [pay(reservations, node, account, transfer, number % UNMARKED_EVERY != 0) for number in range(args.count)]
    except (Refused, Lost) as failed:
        sys.exit(f"payouts: {failed}")
    print(f"paid {len(paid)} times", flush=True)
    deadline = time.monotonic() + RETRY_FOR_S
    for tx_hash in paid:
        while node.call("eth_getTransactionReceipt", tx_hash) is None:
            if time.monotonic() > deadline:
                sys.exit(f"payouts: {tx_hash} is not mined after {RETRY_FOR_S} s")
            time.sleep(PAUSE_S)
    print("all of it is on chain")


if __name__ == "__main__":
    main()
