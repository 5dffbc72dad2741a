/*
 * What one call receives lies together, wherever its buffer lies in its page: `one_piece PORT`. Several threads read records of one connection, all of
 * which are here before; a peek shows all that a read would take. Prints what it has tried, and "all" at the end.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cases.h"

enum { READERS = 3, SPACE = 1 << 20, PAGE = 4096, BEHIND = 50000, ROUNDS = 20 };

struct reader {
	pthread_t thread;
	int fd, record, offset;
	long records;
};

static char *space_of_pages(void)
{
	char *space = mmap(NULL, SPACE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(space != MAP_FAILED);
	return space;
}

static void *read_records(void *of)
{
	struct reader *me = of;
	char *space = space_of_pages(), *at = space + me->offset;
	ssize_t got;
	while ((got = recv(me->fd, at, me->record, 0)) > 0) {
		MUST(got == me->record);
		for (int n = 1; n < me->record; n++)
			MUST(at[n] == at[0]);
		me->records++;
	}
	MUST(got == 0);
	munmap(space, SPACE);
	return NULL;
}

static void records(int record, int count, int offset)
{
	int ends[2];
	join(ends);
	char *bytes = space_of_pages();
	for (int n = 0; n < count; n++)
		memset(bytes + n * record, n, record);
	MUST(send(ends[1], bytes, (size_t)record * count, 0) == (ssize_t)record * count);
	/* All of it is here before anybody reads. */
	for (int there = 0; there < record * count;)
		MUST(ioctl(ends[0], FIONREAD, &there) == 0);
	MUST(shutdown(ends[1], SHUT_WR) == 0);
	struct reader readers[READERS];
	long all = 0;
	for (int n = 0; n < READERS; n++) {
		readers[n] = (struct reader){.fd = ends[0], .record = record, .offset = offset};
		MUST(pthread_create(&readers[n].thread, NULL, read_records, &readers[n]) == 0);
	}
	for (int n = 0; n < READERS; n++) {
		MUST(pthread_join(readers[n].thread, NULL) == 0);
		all += readers[n].records;
	}
	MUST(all == count);
	munmap(bytes, SPACE);
	close(ends[0]);
	close(ends[1]);
}

/* An urgent byte that is next is left out, and what is behind it shown. */
static void peek_behind_the_mark(int offset)
{
	int ends[2];
	join(ends);
	char *bytes = space_of_pages();
	MUST(send(ends[1], "!", 1, MSG_OOB) == 1 && send(ends[1], bytes, BEHIND, 0) == BEHIND);
	while (recv(ends[0], bytes, 1, MSG_OOB | MSG_PEEK) != 1)
		MUST(errno == EINVAL || errno == EAGAIN);
	ssize_t shown;
	while ((shown = recv(ends[0], bytes + offset, SPACE - offset, MSG_PEEK | MSG_DONTWAIT)) < BEHIND)
		MUST(shown > 0 || errno == EAGAIN);
	MUST(shown == BEHIND);
	munmap(bytes, SPACE);
	close(ends[0]);
	close(ends[1]);
}

int main(int count, char **arguments)
{
	MUST(count == 2);
	/* Nothing here may hang. */
	alarm(40);
	listen_at_port(arguments[1]);
	static const int offsets[] = {0, 1, PAGE - 32, PAGE - 1};
	for (int n = 0; n < 4; n++) {
		now = "records";
		for (int round = 0; round < ROUNDS; round++) {
			records(64, 512, offsets[n]);
			records(9000, 12, offsets[n]);
		}
		now = "peek behind the mark";
		peek_behind_the_mark(offsets[n]);
		printf("buffer %d bytes into its page\n", offsets[n]);
	}
	printf("all\n");
	return 0;
}
