/* SPDX-License-Identifier: Apache-2.0 */
/* A stranger on the network of a job over verbs: datagrams of any length and content to numbers of queue pairs
 * at which PEs listen. Without arguments it prints the number of a queue pair of this machine, which those
 * made next follow. Arguments: seconds, how many numbers, then for each machine its IPv4 address and the first
 * number. Prints how many datagrams have left. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What PEs want to see in a datagram, and in the first word of a message of 32 bytes. */
enum { QKEY = 0x11111111, MAGIC = 0x31626d54, HELLO = 32, LONGEST = 900, MACHINES = 4 };

static void need(int right, const char *what) {
    if (right) return;
    perror(what);
    exit(1);
}

static uint64_t chance(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 16;
}

int main(int argc, char **argv) {
    static unsigned char bytes[1024];
    struct ibv_device **devices = ibv_get_device_list(NULL);
    need(devices && devices[0], "a device");
    struct ibv_context *context = ibv_open_device(devices[0]);
    need(context != NULL, "ibv_open_device");
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE);
    need(pd && cq && mr, "a queue");
    struct ibv_qp_init_attr init = {.send_cq = cq,
                                    .recv_cq = cq,
                                    .cap = {.max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
                                    .qp_type = IBV_QPT_UD};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    need(qp != NULL, "ibv_create_qp");
    if (argc < 2) return printf("%u\n", qp->qp_num) < 0;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
    need(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0, "INIT");
    attr.qp_state = IBV_QPS_RTR;
    need(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0, "RTR");
    attr.qp_state = IBV_QPS_RTS;
    need(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0, "RTS");
    struct ibv_ah *ways[MACHINES];
    int machines = (argc - 3) / 2;
    need(machines >= 1 && machines <= MACHINES, "machines");
    for (int i = 0; i < machines; i++) {
        struct ibv_ah_attr to = {.is_global = 1, .port_num = 1};
        to.grh.hop_limit = 64;
        /* Of RoCE version 2 over IPv4, of a port with one address. */
        to.grh.sgid_index = 1;
        to.grh.dgid.raw[10] = to.grh.dgid.raw[11] = 0xff;
        need(inet_pton(AF_INET, argv[3 + 2 * i], to.grh.dgid.raw + 12) == 1, argv[3 + 2 * i]);
        ways[i] = ibv_create_ah(pd, &to);
        need(ways[i] != NULL, "ibv_create_ah");
    }
    time_t end = time(NULL) + atoi(argv[1]);
    unsigned numbers = (unsigned)atoi(argv[2]);
    long sent = 0;
    for (; time(NULL) < end; sent++) {
        int to = (int)(chance() % (unsigned)machines);
        for (size_t i = 0; i < sizeof bytes; i += 8) memcpy(bytes + i, &(uint64_t){chance()}, 8);
        if (chance() % 2) memcpy(bytes, &(uint32_t){MAGIC}, 4);
        struct ibv_sge sge = {.addr = (uintptr_t)bytes, .lkey = mr->lkey};
        sge.length = chance() % 2 ? HELLO : (uint32_t)(chance() % LONGEST);
        struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
        wr.wr.ud.ah = ways[to];
        wr.wr.ud.remote_qpn = (uint32_t)atoi(argv[4 + 2 * to]) + (uint32_t)(chance() % numbers);
        wr.wr.ud.remote_qkey = QKEY;
        struct ibv_send_wr *bad;
        need(ibv_post_send(qp, &wr, &bad) == 0, "ibv_post_send");
        struct ibv_wc wc;
        int taken;
        while ((taken = ibv_poll_cq(cq, 1, &wc)) == 0) continue;
        need(taken == 1 && wc.status == IBV_WC_SUCCESS, "a datagram");
        /* The machines are to have time for their own work. */
        nanosleep(&(struct timespec){0, 200000}, NULL);
    }
    printf("%ld\n", sent);
    return 0;
}
